"""Attempts of a job, with and without progress, so that a crash loop ends, and the failures of each node."""

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

    count: int  # Attempts so far, this one included.
    fruitless: int  # How many of those before this one, in a row, left no new checkpoint.
    checkpoint: int  # Checksum of the names and times of all checkpoints at the start of this attempt; 0: none.
    allocation: str = ""  # Slurm's job id and how often it has started the job again, ``7_2``.
    # How many attempts each node has ended by failing first, by its name.
    failures: Mapping[str, int] = field(default_factory=dict)

    def fruitless_now(self, directory: Path) -> int:
        """Fruitless attempts in a row, should this one end now."""
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
    """The attempts so far; None before the first, and where the file is damaged: then they are counted anew."""
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
    """True if the job has begun again elsewhere: a node whose slurmd is dead counts as lost, but its ranks live on."""
    newest = contents.known(directory, FILE).get("allocation", "")
    (job, _, times), (ours, _, mine) = newest.rpartition("_"), allocation.rpartition("_")
    return job == ours and int(times or 0) > int(mine or 0)


def forget(directory: Path) -> None:
    """Start to count anew: someone has resumed the run, and so means it."""
    (directory / FILE).unlink(missing_ok=True)


def checkpoint_seconds(directory: Path) -> float | None:
    """Seconds from the newest checkpoint's first file to its final name; None without one, or by a clock set back."""
    folders = [path for path in (directory / "checkpoints").glob("step-*") if _STEP.search(path.name)]
    try:
        newest = max(folders, key=lambda path: int(_STEP.search(path.name)[1]), default=None)  # type: ignore[index]
        # A worker writes ``state.json`` first and renames the folder last, and a rename changes the folder's ctime.
        seconds = -1.0 if newest is None else newest.stat().st_ctime - (newest / "state.json").stat().st_mtime
    except OSError:
        return None
    return seconds if seconds >= 0 else None


def _checkpoints(directory: Path) -> int:
    """A checksum that every new checkpoint changes, also one that is older by a clock that was set back; 0: none."""
    whole = sorted(path for path in (directory / "checkpoints").glob("*") if path.suffix != ".partial")
    return zlib.crc32(repr([(path.name, path.stat().st_mtime_ns) for path in whole]).encode()) if whole else 0
