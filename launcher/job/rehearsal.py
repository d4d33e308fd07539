"""What a rehearsed rank measured, as the document that ``python -m launcher.worker.rehearse`` writes.

The program is given a folder like a run directory (``spec.json`` and the job's files) and acts as one rank of the run,
alone, with a process group that answers for the others::

    python -m launcher.worker.rehearse --run FOLDER --rank R --steps N --out FILE [-- ARGUMENTS OF THE PROGRAM]

Its exit status is 0 with a :class:`Rehearsed`, else 2 with ``{"schema": 1, "error": "..."}``; a rank that ran out of
memory leaves ``oom.json`` in the folder (``launcher.job.memory``), has ``ran_out`` and status 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Peaks of one phase in bytes; None where the device does not tell.

    Attributes:
        allocated_bytes: ``torch.cuda.max_memory_allocated``; on the CPU the bytes of live tensors.
        reserved_bytes: ``torch.cuda.max_memory_reserved``.
        device_bytes: Of the process on the device, its context included.
        piles: The allocated bytes by pile, where they were told apart.
    """

    allocated_bytes: int
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    piles: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """One rank.

    Attributes:
        rank: Of the run's.
        world: Ranks of the run.
        stage: Its pipeline stage.
        layers: Of the model as it was built.
        device: ``cpu`` or ``cuda``.
        device_name: The GPU's name, or the processor's.
        method: How memory was measured, for a person.
        static_bytes: Allocated between two steps.
        phases: By phase, those that were measured.
        step_seconds: Of each step that was only timed; communication takes no time.
        ran_out: True where memory ended first.
        versions: Of the packages that took part.
    """

    rank: int
    world: int
    stage: int
    layers: int
    device: str
    device_name: str
    method: str
    static_bytes: int | None
    phases: Mapping[str, Measured]
    step_seconds: tuple[float, ...]
    ran_out: bool
    versions: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        """The document."""
        return {"schema": 1, **asdict(self)}


def rehearsed(content: Mapping[str, Any]) -> Rehearsed:
    """The document as data.

    Raises:
        KeyError, TypeError, AttributeError: It is of another version.
    """
    known = {name: content[name] for name in Rehearsed.__slots__}
    return Rehearsed(**{
        **known,
        "phases": {name: Measured(**peak) for name, peak in content["phases"].items()},
        "step_seconds": tuple(content["step_seconds"]),
    })
