"""The next points of a sweep, from Optuna's samplers and the results so far."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from launcher.base import package
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.config.axes import Axes, Axis

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedPoint:
    """A point that was proposed before."""

    overrides: tuple[str, ...]  # Its own overrides.
    loss: float | None  # The loss of its run; None for a point that was skipped, failed, or has not ended.
    pending: bool = False  # True if it is waiting or running.


def require() -> None:
    """Check that Optuna is installed. Raises ConfigErrors if it is not."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        rule = "a sampler needs optuna, which is not installed for this Python"
        ways = [package.install("sweep"), "sweep.sampler=grid"]
        raise ConfigErrors([ConfigError("sweep.sampler", None, rule, ways)]) from None


def propose(axes: Axes, sampler: str, seed: int, tried: Sequence[ProposedPoint]) -> tuple[str, ...]:
    """The next point, as overrides, from the sampler ``tpe`` (tree-structured Parzen estimator) or ``random``."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    number = (seed + len(tried)) % 2**32  # Optuna uses NumPy's generators, whose seeds have 32 bits.
    random = sampler == "random"
    chosen = optuna.samplers.RandomSampler(number) if random else optuna.samplers.TPESampler(seed=number)
    study = optuna.create_study(sampler=chosen)
    space = {axis.key: _distribution(axis) for axis in axes.swept}
    study.add_trials([_trial(point, space) for point in tried])
    params = study.ask(space).params
    return tuple(f"{axis.key}={params[axis.key]}" for axis in axes.swept)


def _distribution(axis: Axis) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(axis.values, tuple):
        return CategoricalDistribution(axis.values)
    low, high, log = axis.values.low, axis.values.high, axis.values.log
    if axis.values.integer:
        return IntDistribution(int(low), int(high), log=log)
    return FloatDistribution(low, high, log=log)


def _trial(point: ProposedPoint, space: "dict[str, BaseDistribution]") -> "FrozenTrial":
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState, create_trial

    texts = dict(text.split("=", 1) for text in point.overrides)
    params = {
        key: texts[key] if isinstance(kind, CategoricalDistribution) else float(texts[key])
        for key, kind in space.items()
    }
    # The samplers rank a pruned trial below all others, but would ignore a failed one.
    ended = TrialState.PRUNED if point.loss is None else TrialState.COMPLETE
    state = TrialState.RUNNING if point.pending else ended
    return create_trial(params=params, distributions=space, value=point.loss, state=state)
