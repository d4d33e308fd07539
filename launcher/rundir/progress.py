"""How far a run has come, from the end of ``metrics.jsonl``: its newest steps, the time that is left, what is saved.

Any key of a line may be absent, since a script of the user's own writes what it has.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from launcher.base import files
from launcher.rundir import contents, results
from launcher.saved import find

METRICS = "metrics.jsonl"
_END_BYTES = 65536
_RECENT = 20
"""Lines over which the speed of a step is taken, for the time that is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands; None for what is not known, or not yet.

    Attributes:
        step: The newest step with a line of metrics.
        steps: All that it is to do; None for a script of the user's own.
        loss: Of the newest line.
        tokens_per_second: Of the newest line, of all ranks together.
        seconds_left: Until the last step at the speed of the newest lines, without evaluations and checkpoints; before
            the first line at the speed that the plan predicts.
        left_is: Where ``seconds_left`` is from; None where it is not known.
        checkpoint_step: Step of the newest whole checkpoint.
    """

    step: int | None
    steps: int | None
    loss: float | None
    tokens_per_second: float | None
    seconds_left: float | None
    left_is: Literal["measured", "predicted"] | None
    checkpoint_step: int | None


def read(run: Path) -> Progress:
    """Read where a run stands."""
    rows = newest(run, _RECENT)
    last, steps, saved = rows[-1] if rows else {}, last_step_of(run), checkpoint(run)
    measured = seconds_left(rows, steps)
    predicted = None if rows else _predicted_left(run, steps, saved or 0)
    return Progress(
        step=_step(last),
        steps=steps,
        loss=number(last, "loss"),
        tokens_per_second=number(last, "tokens_per_second"),
        seconds_left=predicted if measured is None else measured,
        left_is="measured" if measured is not None else "predicted" if predicted is not None else None,
        checkpoint_step=saved,
    )


def _predicted_left(run: Path, steps: int | None, done: int) -> float | None:
    """Seconds until the last step by the plan's speed; None where it has none."""
    speed = results.predicted_speed(run)
    return None if steps is None or speed is None else max(0, steps - done) * speed.step_seconds


def newest(run: Path, count: int) -> list[dict[str, Any]]:
    """The last whole lines of ``metrics.jsonl`` that name a step, oldest first."""
    lines = files.last_lines(run / METRICS, max(_END_BYTES, 512 * count))
    return list(itertools.islice(_rows(reversed(lines)), count))[::-1]


def rows_of(lines: Sequence[str]) -> list[dict[str, Any]]:
    """The lines that are whole and name a step."""
    return list(_rows(lines))


def _rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    return (row for row in files.json_objects(lines) if _step(row) is not None)


def last_step_of(run: Path) -> int | None:
    """Steps of a run; None for a script of the user's own, which decides that by itself."""
    spec = contents.known(run, contents.SPEC)
    train = spec.get("train", {})
    steps = train.get("steps")
    if steps is None and train.get("tokens") is not None:
        with contextlib.suppress(contents.BadRecord):
            steps = contents.spec_of(run).steps
    return steps if spec.get("script") is None and contents.is_whole(steps) else None


def seconds_left(rows: Sequence[Mapping[str, Any]], steps: int | None) -> float | None:
    """Seconds until the last step, at the mean speed of some lines; evaluations and checkpoints come on top."""
    speeds = [seconds for row in rows[-_RECENT:] if (seconds := number(row, "step_seconds")) is not None]
    if steps is None or not speeds:
        return None
    return max(0, steps - int(rows[-1]["step"])) * sum(speeds) / len(speeds)


def checkpoint(run: Path) -> int | None:
    """The step of the newest whole checkpoint, from which a resumed run goes on."""
    found = find.checkpoints(run)
    return found[-1].step if found else None


def line(row: Mapping[str, Any], steps: int | None) -> str:
    """A line of metrics for a person, with what it has of step, losses, gradient norm, learning rate and speed."""
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


_SHOWN = (
    ("loss", "loss", ".4f"),
    ("eval_loss", "held-out loss", ".4f"),
    ("grad_norm", "gradient norm", ".3f"),
    ("learning_rate", "learning rate", ".2e"),
)


def number(row: Mapping[str, Any], key: str) -> float | None:
    """A value of a line as a finite number; None where it has none."""
    value = row.get(key)
    return float(value) if contents.is_number(value) else None


def _step(row: Mapping[str, Any]) -> int | None:
    value = row.get("step")
    return value if contents.is_whole(value) else None
