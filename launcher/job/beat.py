"""A rank's heartbeat: a small file that the rank maps and the node reads, neither waiting for the other.

The file lies in a folder of the node's own memory (``FOLDER`` names it to the ranks), so that a shared file system that
hangs, which is a common cause of a hang, stops neither the rank's writing nor the node's reading. A rank that finds no
such variable (``run --debug``, a script of the user's own) writes none. Times are of ``time.monotonic``, which is one
clock for all processes of a machine.
"""

import struct
from pathlib import Path

from launcher.base import files
from launcher.base.frozen import dataclass

FOLDER = "LAUNCH_BEATS"  # The variable that names the folder to the ranks of a node.
PHASES = ("start", "data", "forward", "backward", "optimizer", "collective", "evaluation", "checkpoint", "end")
"""What a rank can be in; ``start`` is all before the first step, ``collective`` its wait for the others after one."""

MEMORY_PHASES = {"start": "load", "forward": "forward", "backward": "backward", "optimizer": "optimizer",
                 "evaluation": "evaluation", "checkpoint": "checkpoint_save"}  # fmt: skip
"""Phases of ``launcher.job.memory`` by these."""

_HEAD = struct.Struct("<8sii")
_BEAT = struct.Struct("<qqddd")
_MAGIC = b"launch01"
ASKED = _HEAD.size  # The byte in which the node counts how often it has asked the rank for its collectives.
_AT = ASKED + 8
SIZE = _AT + _BEAT.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One reading."""

    rank: int  # Of the job.
    pid: int  # On this node.
    step: int  # The one that is being done; 0 before the first.
    phase: str  # One of ``PHASES``.
    began: float  # When the step began, or what follows it: an evaluation's batch, a checkpoint.
    entered: float  # When the phase began.
    usual: float  # The median of how long what has begun took before, in seconds; 0 where there is nothing to compare.


def head(rank: int, pid: int) -> bytes:
    """The content of a new file."""
    return _HEAD.pack(_MAGIC, rank, pid).ljust(SIZE, b"\0")


def put(buffer: bytearray | memoryview, beat: Beat) -> None:
    """Write what changes from step to step into a mapped file."""
    _BEAT.pack_into(buffer, _AT, beat.step, PHASES.index(beat.phase), beat.began, beat.entered, beat.usual)


def read(path: Path) -> Beat | None:
    """The newest heartbeat of a rank; None where it has written none yet."""
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
    return Beat(rank=rank, pid=pid, step=step, phase=PHASES[phase], began=began, entered=entered, usual=usual)


def path(folder: Path, rank: int) -> Path:
    """The file of a rank."""
    return folder / f"rank{rank}.beat"


def stack(folder: Path, rank: int) -> Path:
    """The file into which a rank's signal handler writes its Python stacks."""
    return folder / f"rank{rank}.stack"


def collectives(folder: Path, rank: int) -> Path:
    """The file into which a rank writes its newest collectives when it is asked."""
    return folder / f"rank{rank}.collectives.json"
