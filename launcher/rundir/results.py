"""Results of a run, read from the files that its worker left: losses, speed, measured memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.base import files
from launcher.base.errors import LauncherError
from launcher.rundir import contents

BETWEEN = "between steps"

_ROUNDED = 0.1
"""Tokens a second: more than what is lost where a prediction is written with one decimal."""


def steps(run: Path) -> list[dict[str, Any]]:
    """The whole lines of ``metrics.jsonl`` that belong to a training step; none where there is no such file."""
    return list(training(files.last_lines(run / "metrics.jsonl")))


def training(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The lines of metrics that hold a loss; a user's script may leave out all else, and a step is then counted."""
    count = 0
    for row in files.json_objects(lines):
        if is_number(row.get("loss")):
            count += 1
            yield {**row, "step": _whole(row.get("step"), count)}


def _whole(step: object, count: int) -> int:
    """A step as a whole number, or the count where it is none."""
    return int(step) if contents.is_number(step) else count


def is_number(value: object) -> bool:
    """True for a number, NaN and infinity among them; a script may write anything."""
    return isinstance(value, float) or contents.is_whole(value)


def speed(found: Sequence[dict[str, Any]], predicted: PredictedSpeed | None = None) -> float | None:
    """Tokens a second of all ranks together, the median of the second half of the lines: it knows no warm-up.

    None where the lines say nothing of it.

    Args:
        found: The lines.
        predicted: What it is compared with: of a run that went on with other settings only lines with this prediction
            count, where there are some.
    """
    known = second_half(found, predicted)
    return float(statistics.median(row["tokens_per_second"] for row in known)) if known else None


def second_half(found: Sequence[dict[str, Any]], predicted: PredictedSpeed | None = None) -> list[dict[str, Any]]:
    """The lines that a run's speed is of; the arguments are those of :func:`speed`."""
    rows = [] if predicted is None else [row for row in found if _is_of(row, predicted)]
    known = [row for row in rows or found if contents.is_number(row.get("tokens_per_second"))]
    half = known[len(known) // 2 :]
    return [row for row in half if not row.get("followed")] or half  # Following its memory takes time of a step.


class PredictedSpeed(NamedTuple):
    """The speed that the plan of a run predicts.

    Attributes:
        tokens_per_second: Of all ranks together.
        per_gpu: Of one GPU.
        low: The lower end of the band around ``per_gpu``.
        high: The upper end.
        step_seconds: Of an optimizer step.
    """

    tokens_per_second: float
    per_gpu: float
    low: float
    high: float
    step_seconds: float


def _is_of(row: dict[str, Any], predicted: PredictedSpeed) -> bool:
    """True if a line was written under this prediction, which its worker rounds (``launcher.worker.metrics``)."""
    said = row.get("predicted_tokens_per_second")
    return contents.is_number(said) and abs(float(said) - predicted.tokens_per_second) < _ROUNDED


def predicted_speed(run: Path) -> PredictedSpeed | None:
    """The speed of the plan; None where it is unknown, as on a CPU, and in records of older versions."""
    found = contents.known(run, contents.PLAN).get("speed") or {}
    keys = ("tokens_per_second", "tokens_per_second_per_gpu", "low", "high", "step_seconds")
    values = [float(value) for key in keys if contents.is_number(value := found.get(key)) and value > 0]
    return PredictedSpeed(*values) if len(values) == len(keys) else None


def loss(found: Sequence[dict[str, Any]]) -> float:
    """The loss that a sampler minimises: the last on held-out samples, else the mean over the last tenth of steps."""
    held_out = [row["eval_loss"] for row in found if is_number(row.get("eval_loss"))]
    if held_out:
        return float(held_out[-1])
    return training_loss(found) or 0.0


def training_loss(found: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean over the last tenth of the lines, at least one: single lines scatter; None where there are none."""
    last = [row["loss"] for row in found[-max(1, len(found) // 10) :]]
    return float(sum(last) / len(last)) if last else None


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
    except LauncherError:  # Of another version, or an extension that the run needs is not installed here.
        return found


def was_restored(run: Path) -> bool:
    """True if what was measured in the load is that of a checkpoint."""
    return contents.known(run, contents.MEMORY).get("restored", 0) not in (0, None)


def closing_loss(found: Sequence[Mapping[str, Any]]) -> str:
    """The loss of training that a run has come to, as text: the mean of the last tenth of its lines, which is said."""
    count = max(1, len(found) // 10)
    return f"{training_loss(found):.4f}" + (f" (mean of the last {count} lines)" if count > 1 else "")


def measured(run: Path) -> dict[str, int]:
    """The largest figure over the ranks for each phase, in bytes, and for the state between two steps."""
    worst: dict[str, int] = {}
    for rank in contents.known(run, contents.MEMORY).get("ranks", ()):
        phases = rank.get("phases")
        sizes = {**(phases if isinstance(phases, dict) else {}), BETWEEN: rank.get("static_bytes")}
        for phase, size in sizes.items():
            if contents.is_whole(size):
                worst[phase] = max(worst.get(phase, 0), size)
    return worst
