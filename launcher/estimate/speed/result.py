"""The answer of the model of speed, as frozen data in the shape of ``launch check --json`` (docs/contract.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from launcher.estimate.speed.terms import COMMUNICATION, PARTS, SpeedTerm, StepPart

NOISE = 1e-9
"""Seconds below which a term is a rounding error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """One pipeline stage: seconds of one micro-batch's passes, recomputation included, and of one message onwards."""

    stage: int
    forward_seconds: float
    backward_seconds: float
    send_seconds: float

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return self.forward_seconds + self.backward_seconds

    def times(self, factor: float) -> StageTime:
        """All of it, so many times as long."""
        return StageTime(
            stage=self.stage,
            forward_seconds=self.forward_seconds * factor,
            backward_seconds=self.backward_seconds * factor,
            send_seconds=self.send_seconds * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The factor between measured and predicted speed that a prediction was multiplied with.

    Attributes:
        value: Measured / predicted tokens a second, the median of ``rows`` runs.
        low: The lower end of the band around the corrected prediction, as a factor.
        high: The upper end.
        rows: The measured runs that it is of; 0 where none was used.
        whose: The framework and GPU, or the wider group, whose runs they are.
        here: True if they are the user's own runs on this cluster, and not those of the shipped calibration.
    """

    value: float
    low: float
    high: float
    rows: int
    whose: str
    here: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedEstimate:
    """The answer of the model of speed for one run.

    Attributes:
        step_seconds: Seconds of an optimizer step.
        tokens: Tokens of it, over all ranks.
        gpus: Ranks.
        model_flops: FLOPs of a step that the model itself needs, recomputation left out, causal attention halved.
        hardware_flops: Those that are computed, recomputation included.
        peak_flops: Dense peak of one GPU in the compute format, in FLOP/s.
        bubble: Share of the step in which the slowest stage idles for the schedule.
        terms: The parts of a step on the slowest stage; their exposed seconds add up to ``step_seconds``.
        stages: One rank of each pipeline stage.
        constant: The measured factor that is in all of it.
        crowded: True if so much of the card is taken that the allocator may slow the run, to the band's lower end.
    """

    step_seconds: float
    tokens: int
    gpus: int
    model_flops: float
    hardware_flops: float
    peak_flops: float
    bubble: float
    terms: tuple[SpeedTerm, ...]
    stages: tuple[StageTime, ...]
    constant: Constant
    crowded: bool = False

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of all ranks together."""
        return self.tokens / self.step_seconds

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Tokens a second of one GPU."""
        return self.tokens_per_second / self.gpus

    @property
    def low(self) -> float:
        """The lower end of the band around ``tokens_per_second_per_gpu``."""
        return self.tokens_per_second_per_gpu * self.constant.low

    @property
    def high(self) -> float:
        """The upper end of the band."""
        return self.tokens_per_second_per_gpu * self.constant.high

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: model FLOPs a second over the peaks of all GPUs (arXiv:2204.02311, appendix B).

        Attention counts halved, as a causal mask leaves half of its products.
        """
        return self.model_flops / (self.step_seconds * self.gpus * self.peak_flops)

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: with what is recomputed (arXiv:2205.05198, section 5)."""
        return self.hardware_flops / (self.step_seconds * self.gpus * self.peak_flops)

    def exposed(self, part: StepPart) -> float:
        """Seconds of one part that the step waits for."""
        return sum(term.exposed_seconds for term in self.terms if term.part == part)

    def parts(self) -> Iterator[tuple[StepPart, tuple[SpeedTerm, ...]]]:
        """The parts that take any time, with their terms."""
        for part in PARTS:
            found = tuple(term for term in self.terms if term.part == part and term.seconds > NOISE)
            if found:
                yield part, found

    def as_dict(self) -> dict[str, object]:
        """The part ``speed`` of the document of ``launch check --json``, without what time and money cost."""
        parts = [
            {
                "part": part,
                "seconds": sum(term.seconds for term in terms),
                "exposed_seconds": sum(term.exposed_seconds for term in terms),
                "formula": " + ".join(term.formula for term in terms),
                "source": "; ".join(dict.fromkeys(term.source for term in terms)),
            }
            for part, terms in self.parts()
        ]
        traffic = [
            {
                "group": term.group or term.part,
                "bytes": round(term.bytes),
                "seconds": term.seconds,
                "exposed_seconds": term.exposed_seconds,
            }
            for term in self.terms
            if term.part in COMMUNICATION and term.seconds > NOISE
        ]
        return {
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "low": self.low,
            "high": self.high,
            "step_seconds": self.step_seconds,
            "mfu": self.mfu,
            "model_flops": self.model_flops,
            "bubble": self.bubble,
            "parts": parts,
            "communication": traffic,
        }
