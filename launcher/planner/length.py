"""The length of the training that is planned: tokens, days and money, as options and as figures of a layout."""

import re
from collections.abc import Sequence

from launcher.base.errors import ConfigError, ConfigErrors
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
    """The cost of a whole training at the predicted speed; ``price`` is None where none is set."""

    days: float
    gpu_hours: float
    price: float | None


def tokens_of(text: str) -> int:
    """Tokens as people write them: ``1T``, ``500B``, ``1.5e12``, ``20_000``. Raises ConfigErrors for anything else."""
    found = _NUMBER.fullmatch(text.strip())
    number = float(found[1].replace("_", "")) * _TIMES[found[2].upper()] if found else 0.0
    if not 1 <= number < 1e18:  # A thousand times what was ever trained on; above it a float is no count.
        rule = "tokens are a number of at least 1 and below 1e18, with K, M, B (10^9) or T (10^12) behind it"
        raise ConfigErrors([ConfigError("--tokens", text, rule, ["--tokens 1T", "--tokens 500B", "--tokens 1.5e12"])])
    return round(number)


def words(typed: Sequence[str], *, tokens: str | None, price: float | None) -> tuple[str, ...]:
    """The words that ``--tokens`` and ``--price``, as typed, are short for.

    Raises ConfigErrors: The overrides say the same, or a number makes no sense.
    """
    keys = {word.partition("=")[0].lstrip("+"): word for word in typed}
    errors = []
    if tokens is not None:
        errors += [_twice("--tokens", tokens, keys[key]) for key in (TOKENS, STEPS, EPOCHS) if key in keys]
    if price is not None and PRICE in keys:
        errors.append(_twice("--price", price, keys[PRICE]))
    if price is not None and not 0 <= price < float("inf"):
        errors.append(ConfigError("--price", price, "it is the money of one GPU for an hour", ["--price 2.5"]))
    if errors:
        raise ConfigErrors(errors)
    found = [] if tokens is None else [override(TOKENS, tokens_of(tokens))]
    return (*found, *([] if price is None else [override(PRICE, price)]))


def _twice(option: str, value: object, word: str) -> ConfigError:
    return ConfigError(option, value, f"{word} says it already: one of them", [f"{option} {value}", word])


def require(question: Question, days: float | None) -> None:
    """Refuse, as ConfigErrors, a limit on time that is none, or of a training whose length nobody has said."""
    if days is None:
        return
    if not 0 < days < float("inf"):
        raise ConfigErrors([ConfigError("--days", days, "a limit on time is more than 0 days", ["--days 30"])])
    if not is_said(question):
        rule = "a limit on time is one of the whole training, and nobody has said how long that is"
        raise ConfigErrors([ConfigError("--days", days, rule, ["--tokens 1T", "train.steps=100000"])])


def is_said(question: Question) -> bool:
    """True if the words say how long the training is; a hundred steps otherwise, whose cost means nothing."""
    return bool({TOKENS, STEPS, EPOCHS} & question.fixed)


def cost_of(layout: Layout) -> Cost | None:
    """Days, GPU-hours and money of the training with a layout; None where its speed is unknown."""
    spec, speed = layout.spec, layout.speed
    hours = None if speed is None else speed.gpu_hours(spec)
    if speed is None or hours is None:
        return None
    return Cost(days=speed.run_seconds(spec) / DAY, gpu_hours=hours, price=speed.price(spec))


def in_time(layout: Layout, days: float | None) -> bool | None:
    """True if the training ends within the days; None where there is no limit, or the speed is unknown."""
    cost = cost_of(layout)
    return None if days is None or cost is None else cost.days <= days
