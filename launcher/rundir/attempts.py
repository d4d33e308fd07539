"""Counts the attempts of a job that made no progress, so that a crash loop ends, and the failures of each node."""

import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from pathlib import Path

from launcher.base import files, typed
from launcher.base.frozen import dataclass
from launcher.rundir import contents

FILE = "attempts.json"
_STEP = re.compile(r"step-(\d+)\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """The attempts of one submission."""

    count: int  # Attempts so far, including this one.
    fruitless: int  # How many in a row before this one left no new checkpoint.
    checkpoint: int  # Checksum of the names and times of all checkpoints at the start of this attempt; 0: none.
    allocation: str = ""  # Slurm's job id and its number of restarts, ``7_2``.
    # By node name, how many attempts ended because this node failed first.
    failures: Mapping[str, int] = field(default_factory=dict)

    def fruitless_now(self, directory: Path) -> int:
        """Attempts in a row without a new checkpoint, if this one ended now."""
        return 0 if _checkpoints(directory) != self.checkpoint else self.fruitless + 1


def begin(directory: Path, allocation: str) -> Attempts:
    """Count one more attempt."""
    before, saved = recorded(directory), _checkpoints(directory)
    attempts = Attempts(count=1, fruitless=0, checkpoint=saved, allocation=allocation)
    if before is not None:
        fruitless, count = before.fruitless_now(directory), before.count + 1
        attempts = replace(attempts, count=count, fruitless=fruitless, failures=before.failures)
    files.write_atomically(directory / FILE, asdict(attempts))
    return attempts


def recorded(directory: Path) -> Attempts | None:
    """The attempts so far; None before the first, or if the file is damaged, which restarts the count."""
    try:
        return typed.read(Attempts, contents.known(directory, FILE))
    except typed.Unfit:
        return None


def blame(directory: Path, node: str) -> int:
    """Count one more failure of a node, and return how many it has now."""
    now = recorded(directory) or Attempts(count=1, fruitless=0, checkpoint=0)
    failures = {**now.failures, node: now.failures.get(node, 0) + 1}
    files.write_atomically(directory / FILE, asdict(replace(now, failures=failures)))
    return failures[node]


def superseded(directory: Path, allocation: str) -> bool:
    """True if the job was restarted elsewhere: Slurm gives up a node with a dead slurmd, but its ranks keep running."""
    newest = contents.known(directory, FILE).get("allocation", "")
    (job, _, times), (ours, _, mine) = newest.rpartition("_"), allocation.rpartition("_")
    return job == ours and int(times or 0) > int(mine or 0)


def forget(directory: Path) -> None:
    """Restart the count, because the user has resumed the run on purpose."""
    (directory / FILE).unlink(missing_ok=True)


def checkpoint_seconds(directory: Path) -> float | None:
    """Seconds from the newest checkpoint's first file to its final name; None without one, or after a clock change."""
    folders = [path for path in (directory / "checkpoints").glob("step-*") if _STEP.search(path.name)]
    try:
        newest = max(folders, key=lambda path: int(_STEP.search(path.name)[1]), default=None)  # type: ignore[index]
        # A worker writes ``state.json`` first and renames the folder last, and a rename changes the folder's ctime.
        seconds = -1.0 if newest is None else newest.stat().st_ctime - (newest / "state.json").stat().st_mtime
    except OSError:
        return None
    return seconds if seconds >= 0 else None


def _checkpoints(directory: Path) -> int:
    """A checksum that every new checkpoint changes, even one that looks older after a clock change; 0: none."""
    whole = sorted(path for path in (directory / "checkpoints").glob("*") if path.suffix != ".partial")
    return zlib.crc32(repr([(path.name, path.stat().st_mtime_ns) for path in whole]).encode()) if whole else 0
