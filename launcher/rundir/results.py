"""Results of a run from ``metrics.jsonl`` and ``memory.json``: how far it has come, its speed, its memory."""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from launcher.base import files, typed
from launcher.base.errors import LauncherError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.data import token_folder
from launcher.rundir import contents
from launcher.saved import checkpoints

METRICS = "metrics.jsonl"
_END_BYTES = 65536
_RECENT = 20  # Lines over which the speed of a step is taken, for the time that is left.

BETWEEN = "between steps"  # The phase of the state that stays from step to step.

_SHOWN = (
    ("loss", "loss", ".4f"),
    ("eval_loss", "held-out loss", ".4f"),
    ("grad_norm", "gradient norm", ".3f"),
    ("learning_rate", "learning rate", ".2e"),
)
"""Keys of a line of metrics that a person is shown, with their names and forms."""

_ROUNDED = 0.1  # Tokens a second: more than what is lost where a prediction is written with one decimal.


def steps(run: Path) -> list[JsonObject]:
    """The whole lines of ``metrics.jsonl`` that belong to a training step; none where there is no such file."""
    return list(training(files.last_lines(run / "metrics.jsonl")))


def training(lines: Iterable[str]) -> Iterator[JsonObject]:
    """The lines of metrics that hold a loss; a user's script may leave out all else, and a step is then counted."""
    count = 0
    for row in files.json_objects(lines):
        if is_number(row.get("loss")):
            count += 1
            step = row.get("step")
            yield {**row, "step": int(step) if typed.is_number(step) else count}


def is_number(value: object) -> bool:
    """True for a number, NaN and infinity among them; a script may write anything."""
    return isinstance(value, float) or typed.is_whole(value)


def speed(found: Sequence[JsonObject], predicted: PredictedSpeed | None = None) -> float | None:
    """Tokens a second of all ranks, the median of the second half of the lines of the prediction, or None."""
    known = second_half(found, predicted)
    return float(statistics.median(row["tokens_per_second"] for row in known)) if known else None


def second_half(found: Sequence[JsonObject], predicted: PredictedSpeed | None = None) -> list[JsonObject]:
    """The lines from which a run's speed is taken; the arguments are as for :func:`speed`."""
    rows = [] if predicted is None else [row for row in found if _is_of(row, predicted)]
    known = [row for row in rows or found if typed.is_number(row.get("tokens_per_second"))]
    half = known[len(known) // 2 :]
    return [row for row in half if not row.get("followed")] or half  # Following its memory takes time of a step.


class PredictedSpeed(NamedTuple):
    """The speed that the plan of a run predicts."""

    tokens_per_second: float  # Of all ranks together.
    per_gpu: float  # Of one GPU.
    low: float  # The lower end of the band around ``per_gpu``.
    high: float  # The upper end.
    step_seconds: float  # Of an optimizer step.


def _is_of(row: JsonObject, predicted: PredictedSpeed) -> bool:
    """True if a line was written under this prediction, which its worker rounds (``launcher.worker.metrics``)."""
    said = row.get("predicted_tokens_per_second")
    return typed.is_number(said) and abs(float(said) - predicted.tokens_per_second) < _ROUNDED


def predicted_speed(run: Path) -> PredictedSpeed | None:
    """The speed of the plan; None where it is unknown, as on a CPU."""
    found = contents.known(run, contents.PLAN).get("speed") or {}
    keys = ("tokens_per_second", "tokens_per_second_per_gpu", "low", "high", "step_seconds")
    values = [float(value) for key in keys if typed.is_number(value := found.get(key)) and value > 0]
    return PredictedSpeed(*values) if len(values) == len(keys) else None


def predicted_phases(run: Path) -> dict[str, int]:
    """The predicted peak of each phase by the plan; of a run that has gone on from a checkpoint, with its load."""
    found = contents.known(run, contents.PLAN).get("phases") or {}
    if not was_restored(run) or not found:
        return found
    from launcher.preflight import assess, findings  # Late, because most runs are not resumed.

    try:
        spec = contents.spec_of(run)
        if spec.judges_no_model or findings.errors(spec):
            return found
        return {**found, "load": assess.estimated(assess.going_on(spec)).phases["load"]}
    except LauncherError:  # It is damaged, or an extension that the run needs is not installed here.
        return found


def was_restored(run: Path) -> bool:
    """True if the measured load is the load of a checkpoint."""
    return contents.known(run, contents.MEMORY).get("restored", 0) not in (0, None)


def measured(run: Path) -> dict[str, int]:
    """The largest figure over the ranks for each phase, in bytes, and for the state between two steps."""
    worst: dict[str, int] = {}
    for rank in contents.known(run, contents.MEMORY).get("ranks", ()):
        phases = rank.get("phases")
        sizes = {**(phases if isinstance(phases, dict) else {}), BETWEEN: rank.get("static_bytes")}
        for phase, size in sizes.items():
            if typed.is_whole(size):
                worst[phase] = max(worst.get(phase, 0), size)
    return worst


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run; None stands for a figure that is not known, or not yet."""

    step: int | None  # The newest step with a line of metrics.
    steps: int | None  # All that it is to do; None for a script of the user's own.
    loss: float | None  # Of the newest line.
    tokens_per_second: float | None  # Of the newest line, of all ranks together.
    # Until the last step at the speed of the newest lines, without evaluations and checkpoints; before the first line
    # at the speed that the plan predicts.
    seconds_left: float | None
    left_is: Literal["measured", "predicted"] | None  # Where ``seconds_left`` is from; None where it is not known.
    checkpoint_step: int | None  # Step of the newest whole checkpoint.


def read_progress(run: Path) -> Progress:
    """Read where a run stands."""
    rows = newest(run, _RECENT)
    last, steps, saved = rows[-1] if rows else {}, last_step_of(run), newest_checkpoint(run)
    measured = seconds_left(rows, steps)
    plan = None if rows or steps is None else predicted_speed(run)
    predicted = None if plan is None or steps is None else max(0, steps - (saved or 0)) * plan.step_seconds
    return Progress(
        step=_step(last),
        steps=steps,
        loss=number(last, "loss"),
        tokens_per_second=number(last, "tokens_per_second"),
        seconds_left=predicted if measured is None else measured,
        left_is="measured" if measured is not None else "predicted" if predicted is not None else None,
        checkpoint_step=saved,
    )


def newest(run: Path, count: int) -> list[JsonObject]:
    """The last whole lines of ``metrics.jsonl`` that name a step, oldest first."""
    lines = files.last_lines(run / METRICS, max(_END_BYTES, 512 * count))
    return list(itertools.islice(rows_of(reversed(lines)), count))[::-1]


def rows_of(lines: Iterable[str]) -> Iterator[JsonObject]:
    """The lines that are whole and name a step."""
    return (row for row in files.json_objects(lines) if _step(row) is not None)


def last_step_of(run: Path) -> int | None:
    """Steps of a run; None for a script of the user's own, which decides that by itself."""
    spec = contents.known(run, contents.SPEC)
    train = spec.get("train", {})
    steps = train.get("steps")
    counted = (files.read_json(run / token_folder.POINTER) or {}).get("steps")
    if steps is None and counted is not None:
        return counted if typed.is_whole(counted) else None
    if steps is None and (train.get("tokens") is not None or train.get("epochs") is not None):
        with contextlib.suppress(contents.BadRecord):
            steps = contents.spec_of(run).steps
    return steps if spec.get("script") is None and typed.is_whole(steps) else None


def seconds_left(rows: Sequence[Mapping[str, Any]], steps: int | None) -> float | None:
    """Seconds until the last step, at the mean speed of some lines; evaluations and checkpoints come on top."""
    speeds = [seconds for row in rows[-_RECENT:] if (seconds := number(row, "step_seconds")) is not None]
    if steps is None or not speeds:
        return None
    return max(0, steps - int(rows[-1]["step"])) * sum(speeds) / len(speeds)


def newest_checkpoint(run: Path) -> int | None:
    """The step of the newest whole checkpoint, from which a resumed run goes on."""
    found = checkpoints.whole_checkpoints(run)
    return found[-1].step if found else None


def metrics_line(row: Mapping[str, Any], steps: int | None) -> str:
    """A line of metrics for a person: its step, losses, gradient norm, learning rate and speed, where it has them."""
    of = "" if steps is None else f"/{steps}"
    parts = [f"step {row['step']}{of}"]
    for key, name, form in _SHOWN:
        value = number(row, key)
        if value is not None:
            parts.append(f"{name} {value:{form}}".strip())
    speed = number(row, "tokens_per_second")
    if speed is not None:
        parts.append(f"{speed:,.0f} tokens/s")
    return "  ".join(parts)


def number(row: Mapping[str, Any], key: str) -> float | None:
    """A value of a line as a finite number; None where it has none."""
    value = row.get(key)
    return float(value) if typed.is_number(value) else None


def _step(row: Mapping[str, Any]) -> int | None:
    value = row.get("step")
    return value if typed.is_whole(value) else None
