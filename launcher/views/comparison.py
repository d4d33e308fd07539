"""Runs side by side: the settings that differ, the loss at equal steps and at equal tokens, speed, memory.

What a run does not have, or not yet, is None. Losses are compared at steps that all runs logged, else at the newest
line before a given step or number of tokens.
"""

import bisect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.units import Pair
from launcher.charts.lines import evenly
from launcher.rundir import contents, lock, results, status
from launcher.rundir.results import Basis, Trained
from launcher.rundir.status import RunState

_POINTS = 6  # Steps, and numbers of tokens, at which losses are compared.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """One run of a comparison."""

    run: RunState  # Its state and progress.
    settings: Mapping[str, Any]  # Its settings by dotted key, without its name and the free resources of the machine.
    tokens_per_step: int | None  # Global batch in tokens; None when unknown.
    gpus: int  # Its ranks.
    curve: tuple[tuple[int, float], ...]  # Step and loss of every line of metrics that has both.
    trained: Trained  # Its training data, and its losses.
    speed: Pair[float]  # Tokens a second and GPU; measured is the median of the second half of the lines.
    memory: Pair[int]  # Allocated peak of the worst rank in bytes.

    @property
    def steps(self) -> int | None:
        """Steps completed."""
        return self.run.progress.step

    @property
    def tokens(self) -> int | None:
        """Tokens trained on."""
        return None if self.steps is None or self.tokens_per_step is None else self.steps * self.tokens_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs side by side."""

    sides: tuple[Side, ...]  # The runs, in the order they were named.
    differences: Mapping[str, tuple[Any, ...]]  # Settings that differ, with the value of each run.
    at_steps: Mapping[int, tuple[float | None, ...]]  # Steps, with the loss of each run there.
    # Token counts, with the loss of each run there; empty when a step has equally many tokens in all runs.
    at_tokens: Mapping[int, tuple[float | None, ...]]
    by: Basis  # The loss that runs are ranked by.

    @property
    def held_out(self) -> bool:
        """True if the losses shown are held-out losses: every run with losses has them."""
        known = [side.trained for side in self.sides if side.curve]
        return bool(known) and all(run.held_out is not None for run in known)

    def loss(self, side: Side) -> float | None:
        """The loss shown for a run."""
        return side.trained.held_out if self.held_out else side.trained.training

    def as_dict(self) -> JsonObject:
        """The document of ``launch compare --json``."""
        return {
            "runs": [self._run(side) for side in self.sides],
            "differences": [{"path": path, "values": list(values)} for path, values in self.differences.items()],
            "loss_is": "held_out" if self.held_out else "training",
            "at_steps": [{"step": step, "losses": list(found)} for step, found in self.at_steps.items()],
            "at_tokens": [{"tokens": tokens, "losses": list(found)} for tokens, found in self.at_tokens.items()],
        }

    def _run(self, side: Side) -> JsonObject:
        run, speed, memory = side.run, side.speed, side.memory
        return {
            "id": run.id,
            "directory": run.directory,
            "state": run.state,
            "reason": run.reason,
            "settings": dict(side.settings),
            "loss": self.loss(side),
            "tokens_per_second_per_gpu": speed.measured,
            "predicted_tokens_per_second_per_gpu": speed.predicted,
            "predicted_bytes": memory.predicted,
            "peak_bytes": memory.measured,
            "steps": side.steps,
            "tokens": side.tokens,
        }


def compare(directories: Sequence[Path]) -> Comparison:
    """Read runs and put them side by side."""
    sides = tuple(_side(Path(row.directory), row) for row in status.read_all(directories))
    keys = dict.fromkeys(key for side in sides for key in side.settings)
    values = {key: tuple(side.settings.get(key) for side in sides) for key in keys}
    return Comparison(
        sides=sides,
        differences={key: found for key, found in values.items() if any(value != found[0] for value in found)},
        at_steps=_at_steps(sides),
        at_tokens=_at_tokens(sides),
        by=results.ranking_basis(side.trained for side in sides),
    )


def _side(run: Path, row: RunState) -> Side:
    content, rows = contents.known(run, contents.SPEC), results.steps(run)
    points = ((results.number(line, "step"), results.number(line, "loss")) for line in rows)
    curve = {int(step): loss for step, loss in points if step is not None and loss is not None}
    predicted, ranks = results.predicted_speed(run), gpus(run)
    measured = results.speed(rows, predicted)
    return Side(
        run=row,
        settings=lock.settings(content),
        tokens_per_step=results.tokens_per_step(content),
        gpus=ranks,
        curve=tuple(sorted(curve.items())),  # A restarted script repeats steps.
        trained=results.trained_on(run, rows),
        speed=Pair(predicted and predicted.per_gpu, measured and measured / ranks),
        memory=Pair(results.predicted_peak(run), max(results.measured(run).values(), default=None)),
    )


def gpus(run: Path) -> int:
    """Ranks of a run."""
    job = contents.known(run, contents.JOB)
    return max(1, int(job.get("nodes", 1)) * int(job.get("gpus_per_node", 1)))


def _at_steps(sides: Sequence[Side]) -> dict[int, tuple[float | None, ...]]:
    curves = [dict(side.curve) for side in sides if side.curve]
    if len(curves) < 2:
        return {}
    common = sorted(set(curves[0]).intersection(*curves[1:]))
    last = min(max(curve) for curve in curves)
    chosen = evenly(common if common else range(1, last + 1), _POINTS)
    return {step: tuple(_loss_at(side.curve, step) for side in sides) for step in chosen}


def _at_tokens(sides: Sequence[Side]) -> dict[int, tuple[float | None, ...]]:
    known = [side for side in sides if side.curve and side.tokens_per_step is not None]
    if len(known) < 2 or len({side.tokens_per_step for side in known}) == 1:
        return {}
    last = min(side.curve[-1][0] * (side.tokens_per_step or 0) for side in known)
    largest = max(side.tokens_per_step or 0 for side in known)
    chosen = evenly(range(largest, last + 1, largest), _POINTS) or [last]
    return {tokens: tuple(_loss_after(side, tokens) for side in sides) for tokens in chosen}


def _loss_after(side: Side, tokens: int) -> float | None:
    return None if side.tokens_per_step is None else _loss_at(side.curve, tokens // side.tokens_per_step)


def _loss_at(curve: Sequence[tuple[int, float]], step: int) -> float | None:
    """The loss of the newest line at or before a step; None before the first line, and beyond the last."""
    at = bisect.bisect_right(curve, step, key=lambda point: point[0])
    return None if at == 0 or step > curve[-1][0] else curve[at - 1][1]


def lowest(comparison: Comparison, value: Callable[[Side], float | None]) -> Side | None:
    """The run with the smallest value; None when fewer than two have one."""
    found = [(number, side) for side in comparison.sides if (number := value(side)) is not None]
    return min(found, key=lambda pair: pair[0])[1] if len(found) > 1 else None
