"""The length of the planned training: tokens, days and money, as options and as figures of a layout."""

import re
from collections.abc import Sequence

from launcher.base.errors import ConfigError, ConfigErrors, raise_any
from launcher.base.frozen import dataclass
from launcher.planner.layouts import Layout
from launcher.planner.question import Question
from launcher.spec.edit import override

TOKENS, STEPS, EPOCHS = "train.tokens", "train.steps", "train.epochs"
PRICE = "cluster.price_per_gpu_hour"
DAY = 86_400  # Seconds.
_TIMES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NUMBER = re.compile(r"(\d[\d_]*(?:\.\d+)?(?:e\+?\d+)?)\s*([KMBT]?)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a whole training at the predicted speed; ``price`` is None if none is set."""

    days: float
    gpu_hours: float
    price: float | None


def tokens_of(text: str) -> int:
    """Tokens as people write them: ``1T``, ``500B``, ``1.5e12``, ``20_000``. Raises ConfigErrors for anything else."""
    found = _NUMBER.fullmatch(text.strip())
    number = float(found[1].replace("_", "")) * _TIMES[found[2].upper()] if found else 0.0
    if not 1 <= number < 1e18:  # A thousand times the longest training ever; a larger float is no exact count.
        rule = "tokens are a number from 1 to below 1e18, optionally followed by K, M, B (10^9) or T (10^12)"
        raise ConfigErrors([ConfigError("--tokens", text, rule, ["--tokens 1T", "--tokens 500B", "--tokens 1.5e12"])])
    return round(number)


def words(typed: Sequence[str], *, tokens: str | None, price: float | None) -> tuple[str, ...]:
    """The overrides that ``--tokens`` and ``--price`` stand for.

    Raises ConfigErrors: An override sets the same, or a number is invalid.
    """
    keys = {word.partition("=")[0].lstrip("+"): word for word in typed}
    errors = []
    if tokens is not None:
        errors += [_twice("--tokens", tokens, keys[key]) for key in (TOKENS, STEPS, EPOCHS) if key in keys]
    if price is not None and PRICE in keys:
        errors.append(_twice("--price", price, keys[PRICE]))
    if price is not None and not 0 <= price < float("inf"):
        errors.append(ConfigError("--price", price, "it is the price of one GPU-hour, 0 or more", ["--price 2.5"]))
    raise_any(errors)
    found = [] if tokens is None else [override(TOKENS, tokens_of(tokens))]
    return (*found, *([] if price is None else [override(PRICE, price)]))


def _twice(option: str, value: object, word: str) -> ConfigError:
    return ConfigError(option, value, f"{word} sets the same: give only one", [f"{option} {value}", word])


def require(question: Question, days: float | None) -> None:
    """Check the time limit. Raises ConfigErrors if it is invalid, or if the length of the training is not set."""
    if days is None:
        return
    if not 0 < days < float("inf"):
        raise ConfigErrors([ConfigError("--days", days, "a time limit is more than 0 days", ["--days 30"])])
    if not is_length_set(question):
        rule = "a time limit applies to the whole training, whose length is not set"
        raise ConfigErrors([ConfigError("--days", days, rule, ["--tokens 1T", "train.steps=100000"])])


def is_length_set(question: Question) -> bool:
    """True if the words set the length of the training; the default of a hundred steps has no meaningful cost."""
    return bool({TOKENS, STEPS, EPOCHS} & question.fixed)


def cost_of(layout: Layout) -> Cost | None:
    """Days, GPU-hours and money of the training with a layout; None if its speed is unknown."""
    spec, speed = layout.spec, layout.speed
    hours = None if speed is None else speed.gpu_hours(spec)
    if speed is None or hours is None:
        return None
    return Cost(days=speed.run_seconds(spec) / DAY, gpu_hours=hours, price=speed.price(spec))


def in_time(layout: Layout, days: float | None) -> bool | None:
    """True if the training ends within the days; None if there is no limit, or the speed is unknown."""
    cost = cost_of(layout)
    return None if days is None or cost is None else cost.days <= days
