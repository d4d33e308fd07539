"""Detect losses that spike or are not finite, and roll back: a checkpoint's weights, with later data.

A spike is a loss more than ``train.spike_deviations`` standard deviations above the mean of the losses before it: the
rule of OLMo 2's spike score (arXiv:2501.00656), over fewer lines, since runs are shorter here. ``rollbacks.json`` has
each rollback with the samples read until then: a run that resumes from that checkpoint skips those samples.
"""

import math
import statistics
from collections import deque
from pathlib import Path

from launcher.base.files import JsonObject, load_json, write_atomically
from launcher.spec import RunSpec
from launcher.worker import TrainingError

FILE = "rollbacks.json"
_WINDOW = 128  # Losses that are remembered.
_FEWEST = 16  # Losses needed before the next one is judged.
_SMALLEST = 0.01  # Least deviation, relative to the mean: seven tiny deviations of a settled loss are not a spike.


class Spike(TrainingError):
    """Raised when the loss spiked and the run must roll back; all ranks raise it at the same step."""

    def __init__(self, step: int, loss: float, text: str) -> None:
        super().__init__(text, "nan")
        self.step, self.loss = step, loss


class SpikeDetector:
    """Compares each loss of a run with the earlier ones."""

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self._before: deque[float] = deque(maxlen=_WINDOW)

    def jump(self, step: int, loss: float) -> str | None:
        """Return a sentence about a finite loss that spiked; None if it did not."""
        if len(self._before) >= _FEWEST:
            mean = statistics.fmean(self._before)
            deviation = max(statistics.pstdev(self._before, mean), _SMALLEST * abs(mean))
            if loss > mean + self._deviations * deviation:
                above, count = (loss - mean) / deviation, len(self._before)
                return (
                    f"the loss of step {step} jumped to {loss:.4g}, {above:.1f} standard deviations above the mean of "
                    f"the {count} before ({mean:.4g})"
                )
        self._before.append(loss)
        return None

    def forget(self) -> None:
        """Forget all earlier losses: the spike was reported, and training continues at the new level."""
        self._before.clear()


def divergence_text(step: int, what: str, value: float) -> str:
    """The error message for a loss, or a gradient norm, that is not finite."""
    return (
        f"the {what} of step {step} is {value}: training has diverged; try a lower optimizer.lr, more "
        "optimizer.warmup_steps or optimizer.clip=1.0, and resume from the last checkpoint"
    )


def read(directory: Path) -> list[JsonObject]:
    """The ways back of a run, oldest first."""
    try:
        return list(load_json(directory / FILE)["rollbacks"])
    except FileNotFoundError:
        return []


def record_rollback(directory: Path, spike: Spike, *, to: int | None, samples: int) -> None:
    """Record a rollback to the checkpoint of step ``to``, with the samples read so far; called by one rank."""
    loss = spike.loss if math.isfinite(spike.loss) else None
    line = {"step": spike.step, "loss": loss, "checkpoint_step": to, "samples": samples}
    write_atomically(directory / FILE, {"schema": 1, "rollbacks": [*read(directory), line]})


def reason_against_rollback(spec: RunSpec, directory: Path, to: int | None) -> str | None:
    """Return why a run cannot roll back: no checkpoint yet, or too many rollbacks to it; None if it can."""
    if to is None:
        return "there is no checkpoint yet to roll back to (save.every)"
    times = sum(1 for line in read(directory) if line["checkpoint_step"] == to)
    if times >= spec.train.rollbacks:
        return f"the run already rolled back to step {to} {times} times (train.rollbacks={spec.train.rollbacks})"
    return None


def samples_behind(directory: Path, step: int, samples: int) -> int:
    """The sample at which a run resumes from a checkpoint that has seen ``samples``: after those of later spikes."""
    return max([samples, *(int(line["samples"]) for line in read(directory) if line["checkpoint_step"] == step)])
