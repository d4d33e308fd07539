"""``oom.json`` of a run: in one line, and put aside where the run begins again."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from launcher.base import files
from launcher.base.units import gib, request
from launcher.job.memory import OUT_OF_MEMORY, OutOfMemory, ran_out

EARLIER = Path("logs", "earlier")
"""Where what is left of earlier attempts lies, a folder each, by when it ended."""


def put_aside(directory: Path) -> None:
    """Keep what an attempt before this one has left, by which this one must not be judged, with the run's logs."""
    path = directory / OUT_OF_MEMORY
    with contextlib.suppress(OSError):
        found = ran_out(directory)
        folder = directory / EARLIER / f"{path.stat().st_mtime:.3f}"
        folder.mkdir(parents=True, exist_ok=True)
        if found is not None and found.snapshot is not None and (directory / found.snapshot).is_file():
            (directory / found.snapshot).rename(folder / Path(found.snapshot).name)
        path.rename(folder / OUT_OF_MEMORY)
    path.unlink(missing_ok=True)


def note_of_slurm(directory: Path) -> None:
    """Leave what Slurm says of a job whose own processes could not say it any more."""
    told = OutOfMemory(
        kind="slurm", place="host", time=time.time(), rank=None, node=None, message="Slurm's state OUT_OF_MEMORY"
    )
    with contextlib.suppress(OSError):  # Somebody else's run, or a rank has written one.
        files.write_new(directory / OUT_OF_MEMORY, f"{json.dumps(told.as_dict())}\n".encode())


def line(found: OutOfMemory) -> str:
    """A device or host that was full, in one line."""
    who = f"rank {found.rank}" if found.rank is not None else "the job" if found.node is None else found.node
    if found.kind in ("host_killer", "cgroup", "slurm"):
        return f"{who} was ended by the kernel: out of host memory{_host(found)}; `launch why RUN` says more"
    what = "out of host memory" if found.place == "host" else "out of memory"
    step = f" of step {found.step}" if found.step else ""
    where = "" if found.phase is None else f" in {found.phase.replace('_', ' ')}{step}"
    layer = "" if found.layer is None else f", layer {found.layer}"
    asked = "" if found.requested_bytes is None else f": asked for {request(found.requested_bytes, found.free_bytes)}"
    return f"{who}: {what}{where}{layer}{asked}; `launch why RUN` says which pile grew"


def _host(found: OutOfMemory) -> str:
    host = found.host
    if host is None or host.node_used_bytes is None or host.node_bytes is None:
        return ""
    return f", {gib(host.node_used_bytes)} of {gib(host.node_bytes)} in use"
