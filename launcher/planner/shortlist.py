"""The shortlist: the best layouts of a plan as short runs to measure.

A short run is the training itself, cut to a few steps: random tokens instead of the data, so that nothing is downloaded
and no rank waits for a disk; no checkpoint, no evaluation, no tracker. Words that set these are left out and reported;
the recipe of the winner has them again. All runs share one time limit, so that they form one job array.
"""

import math
from collections.abc import Iterator, Sequence

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.config import recipes
from launcher.config.overrides import Override, read
from launcher.planner.layouts import Layout
from launcher.planner.question import Question
from launcher.spec import RunSpec
from launcher.spec.edit import changed, override, value_at

STEPS = 20  # Steps of a measurement; the first half is warm-up (``launcher.rundir.results.speed``).
FEWEST_STEPS = 2  # With one step, nothing is left after the warm-up.
SAFETY = 3  # A step may take so many times its predicted time before the time limit ends its run.
START_S = 600  # Seconds allowed for everything before the first step: an allowance, since nothing predicts it.
UNKNOWN_S = 1800  # Seconds allowed for a run whose speed is not predicted, as on a CPU.
_GROUPS = ("data", "save", "eval", "tracking")  # Groups whose words a short run ignores.

_SETTINGS: tuple[tuple[str, object], ...] = (
    ("train.eval_every", None),
    ("train.evals_per_epoch", None),
    ("train.log_every", 1),  # Metrics for each step, over which the median is taken.
    ("train.on_spike", "report"),  # A rollback needs checkpoints.
)
_LENGTHS = ("train.steps", "train.tokens", "train.epochs")
_LIMIT = "cluster.time_limit_min"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlist:
    """The runs of a measurement."""

    layouts: tuple[Layout, ...]  # The layouts, the best first.
    training: tuple[str, ...]  # The words of the training itself: those of the question, and its assumptions.
    words: tuple[str, ...]  # The words that all short runs share.
    overrides: tuple[tuple[str, ...], ...]  # For each layout, the words that choose it.
    left_out: tuple[str, ...]  # Words of the training that short runs ignore.
    steps: int  # Steps of each run.
    time_limit_min: int  # Time limit of each run in minutes.
    runs: tuple[RunSpec, ...]  # The specifications of the runs.

    @property
    def gpu_hours(self) -> float | None:
        """Predicted GPU-hours of all runs' steps, without start-up; None if a speed is unknown."""
        pairs = zip(self.runs, self.layouts, strict=True)
        hours = [None if layout.speed is None else layout.speed.gpu_hours(run) for run, layout in pairs]
        known = [each for each in hours if each is not None]
        return sum(known) if len(known) == len(hours) else None

    @property
    def most_gpu_hours(self) -> float:
        """GPU-hours if each run uses its whole time limit."""
        return sum(run.gpus for run in self.runs) * self.time_limit_min / 60

    @property
    def price_per_gpu_hour(self) -> float | None:
        """The price of a GPU-hour; None if none is set."""
        return self.runs[0].cluster.price_per_gpu_hour


def shortlist(question: Question, layouts: Sequence[Layout], *, steps: int = STEPS) -> Shortlist:
    """The short runs of some layouts, the best first. Raises ConfigErrors for a wrong word or too few steps."""
    require_steps(steps)
    typed, _ = read(question.single, question.catalog)
    said = recipes.expand(typed, question.catalog)
    run, limit = layouts[0].spec, _limit(typed, layouts, steps)
    kept = tuple(each.text for each in typed if not _is_of_training(each))
    words = (*kept, *question.assumed, *_short(run, steps), *_bounded(typed, run, limit))
    overrides = tuple(tuple(_chosen(question, layout)) for layout in layouts)
    return Shortlist(
        layouts=tuple(layouts),
        training=(*question.single, *question.assumed),
        words=words,
        overrides=overrides,
        left_out=tuple(each.text for each in said if _is_of_training(each) and each.text not in words),
        steps=steps,
        time_limit_min=limit,
        runs=tuple(changed(layout.spec, "train.steps", steps) for layout in layouts),
    )


def _chosen(question: Question, layout: Layout) -> Iterator[str]:
    words = layout.overrides[len(question.assumed) :]
    yield from words
    said = {word.partition("=")[0] for word in words}
    yield from (override(key, value_at(layout.spec, key)) for key in question.choices if key not in said)


def require_steps(steps: int) -> None:
    """Check the length of a measurement. Raises ConfigErrors if it is too short."""
    if steps < FEWEST_STEPS:
        rule = f"must be at least {FEWEST_STEPS}, since the first half of the steps is warm-up"
        raise ConfigErrors([ConfigError("--steps", steps, rule, [f"--steps {STEPS}"])])


def _is_of_training(word: Override) -> bool:
    keys = (*_LENGTHS, _LIMIT, *(key for key, _ in _SETTINGS))
    return word.key.partition(".")[0] in _GROUPS or word.key in keys


def _short(run: RunSpec, steps: int) -> Iterator[str]:
    yield f"train.steps={steps}"
    yield from ("data=synthetic", "save=default", "save.last=false", "eval=default", "tracking=none")
    yield from (override(key, value) for key, value in _SETTINGS if value_at(run, key) != value)
    if run.warmup_steps and run.optimizer.decay_steps is None:
        # Keep the training's learning rate schedule, of which a short run covers the first steps.
        yield f"optimizer.decay_steps={run.steps}"


def _bounded(typed: Sequence[Override], run: RunSpec, limit: int) -> Iterator[str]:
    """The words for a run's time limit; the run is requeued only if the user asked for it."""
    yield f"{_LIMIT}={limit}"
    if run.cluster.kind == "slurm" and all(each.key != "cluster.requeues" for each in typed):
        yield "cluster.requeues=0"


def _limit(typed: Sequence[Override], layouts: Sequence[Layout], steps: int) -> int:
    """Minutes for the slowest run: its steps, start-up and save margin; at most the typed limit."""
    cluster = layouts[0].spec.cluster
    margin = cluster.save_margin_s if cluster.kind == "slurm" else 0
    seconds = [layout.speed.step_seconds for layout in layouts if layout.speed is not None]
    needed = START_S + SAFETY * steps * max(seconds, default=0.0)
    if len(seconds) < len(layouts):
        needed = max(needed, UNKNOWN_S)
    minutes = math.ceil((needed + margin) / 60)
    own = cluster.time_limit_min if any(each.key == _LIMIT for each in typed) else None
    return minutes if own is None else min(minutes, own)
