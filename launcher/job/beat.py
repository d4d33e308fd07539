"""A rank's heartbeat: a small file that the rank maps and the node reads, without waiting for each other.

The file is in a memory-backed folder of the node (the variable ``FOLDER`` names it), so a hanging shared file system, a
common cause of a hang, blocks neither the rank's writing nor the node's reading. A rank without that variable
(``run --debug``, a user's script) writes none. Times are from ``time.monotonic``, one clock for all processes of a
machine.
"""

import struct
from pathlib import Path

from launcher.base import files
from launcher.base.frozen import dataclass

FOLDER = "LAUNCH_BEATS"  # The environment variable that tells a node's ranks the folder.
PHASES = ("start", "data", "forward", "backward", "optimizer", "collective", "evaluation", "checkpoint", "end")
"""Phases of a rank; ``start`` is everything before the first step, ``collective`` its wait for others after a step."""

MEMORY_PHASES = {"start": "load", "forward": "forward", "backward": "backward", "optimizer": "optimizer",
                 "evaluation": "evaluation", "checkpoint": "checkpoint_save"}  # fmt: skip
"""The phase of ``launcher.job.memory`` for each of these."""

_HEAD = struct.Struct("<8sii")
_BEAT = struct.Struct("<qqddd")
_MAGIC = b"launch01"
ASKED = _HEAD.size  # Offset of the byte that counts the node's requests for the rank's collectives.
_AT = ASKED + 8
SIZE = _AT + _BEAT.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """One heartbeat."""

    rank: int  # Rank in the job.
    pid: int  # Process id on this node.
    step: int  # The current step; 0 before the first.
    phase: str  # One of ``PHASES``.
    began: float  # Start of the step, or of what follows it: an evaluation's batch, a checkpoint.
    entered: float  # Start of the phase.
    usual: float  # Median seconds that the same work took before; 0 if there is nothing to compare with.


def head(rank: int, pid: int) -> bytes:
    """The content of a new file."""
    return _HEAD.pack(_MAGIC, rank, pid).ljust(SIZE, b"\0")


def put(buffer: bytearray | memoryview, beat: Heartbeat) -> None:
    """Write the changing part of a heartbeat into a mapped file."""
    _BEAT.pack_into(buffer, _AT, beat.step, PHASES.index(beat.phase), beat.began, beat.entered, beat.usual)


def read(path: Path) -> Heartbeat | None:
    """The latest heartbeat of a rank; None if it has written none yet."""
    try:
        content = files.read_bytes(path)
    except OSError:
        return None
    if len(content) != SIZE or not content.startswith(_MAGIC):
        return None
    _, rank, pid = _HEAD.unpack_from(content)
    step, phase, began, entered, usual = _BEAT.unpack_from(content, _AT)
    if began == 0.0 or not 0 <= phase < len(PHASES):
        return None
    return Heartbeat(rank=rank, pid=pid, step=step, phase=PHASES[phase], began=began, entered=entered, usual=usual)


def path(folder: Path, rank: int) -> Path:
    """The heartbeat file of a rank."""
    return folder / f"rank{rank}.beat"


def stack(folder: Path, rank: int) -> Path:
    """The file where a rank's signal handler writes its Python stacks."""
    return folder / f"rank{rank}.stack"


def collectives(folder: Path, rank: int) -> Path:
    """The file where a rank writes its latest collectives on request."""
    return folder / f"rank{rank}.collectives.json"
