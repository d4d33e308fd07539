"""Losses that jump or are no number, and the way back: weights of a checkpoint, with the data read on.

A loss jumps that lies more than ``train.spike_deviations`` standard deviations above the mean of those before it: the
rule of OLMo 2's spike score (arXiv:2501.00656), over fewer lines, since runs are shorter here. ``rollbacks.json`` notes
each way back with the samples that were read until then: whoever goes on from the checkpoint goes on behind that place.
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
_FEWEST = 16  # Losses before one is judged.
_SMALLEST = 0.01  # Of the mean: seven times the tiny deviation of a loss that has settled is no jump.


class Spike(TrainingError):
    """The loss has jumped, and the run is to go back; all ranks raise it at the same step."""

    def __init__(self, step: int, loss: float, text: str) -> None:
        super().__init__(text, "nan")
        self.step, self.loss = step, loss


class Judge:
    """Judges each loss of a run by the earlier ones."""

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self._before: deque[float] = deque(maxlen=_WINDOW)

    def jump(self, step: int, loss: float) -> str | None:
        """The sentence that says that a finite loss has jumped; None where it has not."""
        if len(self._before) >= _FEWEST:
            mean = statistics.fmean(self._before)
            deviation = max(statistics.pstdev(self._before, mean), _SMALLEST * abs(mean))
            if loss > mean + self._deviations * deviation:
                above, count = (loss - mean) / deviation, len(self._before)
                return (
                    f"the loss of step {step} jumped to {loss:.4g}, {above:.1f} standard deviations above the mean of "
                    f"{count} before ({mean:.4g})"
                )
        self._before.append(loss)
        return None

    def forget(self) -> None:
        """Judge by later losses alone: the jump was said, and stays."""
        self._before.clear()


def divergence_text(step: int, loss: float) -> str:
    """The sentence that says that a loss is no number."""
    return (
        f"the loss of step {step} is {loss}: training has diverged; try a lower optimizer.lr, more "
        "optimizer.warmup_steps or optimizer.clip=1.0, and resume from the last checkpoint"
    )


def read(directory: Path) -> list[JsonObject]:
    """The ways back of a run, oldest first."""
    try:
        return list(load_json(directory / FILE)["rollbacks"])
    except FileNotFoundError:
        return []


def note(directory: Path, spike: Spike, *, to: int | None, samples: int) -> None:
    """Note a way back to the checkpoint of step ``to``, with the samples read so far; called by one rank."""
    loss = spike.loss if math.isfinite(spike.loss) else None
    line = {"step": spike.step, "loss": loss, "checkpoint_step": to, "samples": samples}
    write_atomically(directory / FILE, {"schema": 1, "rollbacks": [*read(directory), line]})


def reason_against_rollback(spec: RunSpec, directory: Path, to: int | None) -> str | None:
    """Return why a run cannot go back: no checkpoint yet, or it went back there too often; None where it can."""
    if to is None:
        return "there is no checkpoint yet to go back to (save.every)"
    times = sum(1 for line in read(directory) if line["checkpoint_step"] == to)
    if times >= spec.train.rollbacks:
        return f"it went back to step {to} {times} times already (train.rollbacks={spec.train.rollbacks})"
    return None


def samples_behind(directory: Path, step: int, samples: int) -> int:
    """The place in the data at which a run goes on from a checkpoint that has seen ``samples``: behind later jumps."""
    return max([samples, *(int(line["samples"]) for line in read(directory) if line["checkpoint_step"] == step)])
