"""The speed estimate of a run, in the shape of ``launch check --json`` (docs/contract/documents.md)."""

from collections.abc import Iterator
from dataclasses import asdict, replace

from launcher.base.frozen import dataclass
from launcher.estimate.speed import calibration
from launcher.estimate.speed.calibration import Constant
from launcher.estimate.speed.terms import COMMUNICATION, PARTS, SpeedTerm, StepPart
from launcher.spec import RunSpec

OF_CPU = "the speed of a CPU is not modelled"  # Why the speed of a run without GPUs is unknown.
NOISE = 1e-9  # Seconds below which a term is a rounding error.

_NAMES = {
    "memory_bound": "memory-bound",
    "loss": "loss",
    "recompute": "recomputation",
    "host": "launching kernels",
    "tensor": "tensor parallel",
    "context": "context parallel",
    "expert": "expert parallel",
    "checkpoint": "checkpoints",
    "waiting": "waiting for stragglers",
}
"""Printed names of parts that differ from the part's own words."""

_AFTER_BACKWARD: tuple[StepPart, ...] = ("optimizer", "offload", "checkpoint")
_HOUR = 3600
_INSIDE = ("frameworks", "band_of")  # Fields of the calibration constant that the document leaves out.

_FIGURES = (
    "tokens_per_second", "tokens_per_second_per_gpu", "low", "high", "step_seconds", "mfu", "model_flops", "bubble",
    "hfu",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds of one micro-batch's passes on a pipeline stage, recomputation included, and of a message to the next."""

    stage: int
    forward_seconds: float
    backward_seconds: float
    send_seconds: float

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return self.forward_seconds + self.backward_seconds

    def times(self, factor: float) -> "StageTime":
        """Return the same stage, ``factor`` times as long."""
        names = ("forward_seconds", "backward_seconds", "send_seconds")
        return replace(self, **{name: getattr(self, name) * factor for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedEstimate:
    """The speed estimate of one run."""

    step_seconds: float  # Seconds of an optimizer step.
    tokens: int  # Tokens of a step, over all ranks.
    gpus: int  # Ranks.
    model_flops: float  # FLOPs of a step that the model itself needs, without recomputation, causal attention halved.
    hardware_flops: float  # FLOPs of a step that are computed, recomputation included.
    peak_flops: float  # Dense peak of one GPU in the compute format, in FLOP/s.
    bubble: float  # Share of the step in which the slowest stage idles for the schedule.
    # The parts of a step on the slowest stage; their exposed seconds add up to ``step_seconds``.
    terms: tuple[SpeedTerm, ...]
    stages: tuple[StageTime, ...]  # One rank of each pipeline stage.
    constant: Constant  # The calibration constant that all seconds include.
    # True if the card is so full that the allocator may slow the run by more than the error band.
    crowded: bool = False

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all ranks together."""
        return self.tokens / self.step_seconds

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """Tokens per second of one GPU."""
        return self.tokens_per_second / self.gpus

    @property
    def low(self) -> float:
        """The lower end of the error band of ``tokens_per_second_per_gpu``."""
        return self.tokens_per_second_per_gpu * self.constant.low

    @property
    def high(self) -> float:
        """The upper end of the error band."""
        return self.tokens_per_second_per_gpu * self.constant.high

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: model FLOPs per second over the peak of all GPUs (arXiv:2204.02311, appendix B).

        Attention counts half, as a causal mask leaves half of its products.
        """
        return self.model_flops / (self.step_seconds * self.gpus * self.peak_flops)

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation, recomputation included (arXiv:2205.05198, section 5)."""
        return self.hardware_flops / (self.step_seconds * self.gpus * self.peak_flops)

    def exposed(self, part: StepPart) -> float:
        """Seconds of one part that the step waits for."""
        return sum(term.exposed_seconds for term in self.terms if term.part == part)

    def parts(self) -> Iterator[tuple[StepPart, tuple[SpeedTerm, ...]]]:
        """The parts that take any time, each with its terms."""
        for part in PARTS:
            found = tuple(term for term in self.terms if term.part == part and term.seconds > NOISE)
            if found:
                yield part, found

    @property
    def evaluation_seconds(self) -> float:
        """Seconds of evaluating one global batch: a step without its optimizer, times the forward pass's share.

        Its forward pass gathers weights and exchanges activations like that of a step. No run has measured it.
        """
        passes = self.step_seconds - sum(self.exposed(part) for part in _AFTER_BACKWARD)
        slowest = max(self.stages, key=lambda stage: stage.seconds)
        return passes * slowest.forward_seconds / slowest.seconds

    def run_seconds(self, spec: RunSpec) -> float:
        """Seconds of the run's steps and evaluations."""
        return spec.steps * self.step_seconds + spec.evaluation_batches * self.evaluation_seconds

    def gpu_hours(self, spec: RunSpec) -> float | None:
        """GPU hours of the run's steps and evaluations; None for a script of the user's own."""
        return None if spec.script is not None else self.run_seconds(spec) * spec.gpus / _HOUR

    def price(self, spec: RunSpec) -> float | None:
        """Price of the run's steps and evaluations; None where no price is set."""
        hours, each = self.gpu_hours(spec), spec.cluster.price_per_gpu_hour
        return None if hours is None or each is None else hours * each

    def as_dict(self, spec: RunSpec) -> dict[str, object]:
        """The part ``speed`` of the document of ``launch check --json`` (docs/contract/documents.md)."""
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
            **{name: getattr(self, name) for name in _FIGURES},
            "gpu_hours": self.gpu_hours(spec),
            "price": self.price(spec),
            # The fields that only the printed explanation needs are left out.
            "constant": {name: value for name, value in asdict(self.constant).items() if name not in _INSIDE}
            | {"calibration": calibration.version()},
            "crowded": self.crowded,
            "parts": parts,
            "communication": traffic,
        }


def name_of(part: str) -> str:
    """The printed name of a part of a step."""
    return _NAMES.get(part, part.replace("_", " "))
