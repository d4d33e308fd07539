"""Documents of rehearsed ranks without a worker: the estimate of the built model times a factor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launcher.base.units import GIB
from launcher.job import versions
from launcher.job.memory import Rehearsed, RehearsedPhase
from launcher.preflight.evidence import Evidence
from launcher.rehearsing import rehearse
from launcher.rehearsing.comparison import predict
from launcher.rehearsing.device import Device
from launcher.rehearsing.rehearse import Stage
from launcher.spec import RunSpec

CPU = Device(kind="cpu", name="a processor", memory_bytes=8 * GIB, host_memory_bytes=24 * GIB, cpus=2)
H100 = Device(kind="cuda", name="NVIDIA H100", memory_bytes=79 * GIB, host_memory_bytes=128 * GIB, cpus=16)

FOUND = Evidence(
    time=1.8e9,
    node="n1",
    device="cuda",
    device_name="NVIDIA H100",
    device_bytes=78 * GIB,
    rank=0,
    stage=0,
    predicted_bytes=70 * GIB,
    measured_bytes=71 * GIB,
    least_bytes=72 * GIB,
    used_bytes=76 * GIB,
    ran_out=False,
    depths=(),
    partial=False,
    versions={"torch": str(versions.installed("torch"))},
    directory="/somewhere",
)
"""The evidence kept of a rehearsal on a GPU."""


class Worker:
    """Stands in for the worker: measures the estimate times ``share``.

    Attributes:
        asked: The rank and the layers of each call.
        specs: What was built.
    """

    def __init__(self, share: float = 1.0, *, ran_out: bool = False, cuda: bool = False) -> None:
        self.share, self.ran_out, self.cuda = share, ran_out, cuda
        self.asked: list[tuple[int, int]] = []
        self.specs: list[RunSpec] = []

    def __call__(
        self, spec: RunSpec, rank: int, *, steps: int, folder: Path, seconds: float, environment: Mapping[str, str]
    ) -> Rehearsed:
        self.asked.append((rank, spec.model.num_hidden_layers))
        self.specs.append(spec)
        stage = spec.stage_of(rank)
        peaks = {phase: counters.allocated_bytes or 0 for phase, counters in predict(spec, stage).phases.items()}
        del peaks["checkpoint_save"]
        return Rehearsed(
            rank=rank,
            world=spec.gpus,
            stage=stage,
            layers=spec.model.num_hidden_layers,
            device="cuda" if self.cuda else "cpu",
            device_name=H100.name if self.cuda else CPU.name,
            method="a worker of a test",
            static_bytes=1,
            phases={} if self.ran_out else {phase: self._measured(peak) for phase, peak in peaks.items()},
            step_seconds=tuple(0.5 * spec.model.num_hidden_layers for _ in range(max(0, steps - 2))),
            ran_out=self.ran_out,
            versions={"torch": "2.15.0"},
        )

    def _measured(self, peak: int) -> RehearsedPhase:
        allocated = round(peak * self.share)
        reserved = round(1.1 * allocated) if self.cuda else None
        return RehearsedPhase(
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            device_bytes=None if reserved is None else reserved + GIB // 2,
            piles={"activations": allocated},
        )


def stage(folder: Path, worker: Worker, device: Device = CPU) -> tuple[Stage, list[str]]:
    """Where a rehearsal takes place, and its messages."""
    said: list[str] = []
    return rehearse.Stage(device=device, folder=folder, say=said.append, run=worker), said
