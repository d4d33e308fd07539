"""The output of a run's processes: the files of its ranks, and those of torchrun and submitit around them.

A run that was resumed or requeued has a folder of ranks' output for every attempt: torchrun names it
``<rendezvous id>_<random>``, with one id for all nodes of an attempt. The newest attempt is what a reader asks about;
the others, and what torchrun and submitit say, are of interest where the ranks themselves say nothing.
"""

from __future__ import annotations

import contextlib
import io
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.base import files
from launcher.rundir import contents, failure, home, state

_RANDOM = 9
"""Characters that ``tempfile.mkdtemp`` adds to torchrun's rendezvous id: an underscore, and eight of any kind."""

_SUFFIXES = (".log", ".out", ".err")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Files with something in them: of the newest attempt's ranks, of ranks before, of torchrun and submitit."""

    ranks: tuple[Path, ...]
    earlier: tuple[Path, ...] = ()
    around: tuple[Path, ...] = ()

    @property
    def every(self) -> tuple[Path, ...]:
        """All of them, in the order in which they say why a run failed."""
        return (*self.ranks, *self.earlier, *self.around)


def outputs(directory: Path) -> Outputs:
    """The files of a run: the rank that failed first before the others, errors before the rest, then by name."""
    root = directory / "logs" / "ranks"
    found = _printed(directory / "logs")
    ranks = [path for path in found if path.is_relative_to(root)]
    newest = _newest_attempt(root)
    now = [path for path in ranks if path.relative_to(root).parts[0][:-_RANDOM] == newest]
    first = failure.first_log(directory)
    return Outputs(
        ranks=tuple(sorted(now, key=lambda path: (path != first, not _of_errors(path), path.as_posix()))),
        earlier=tuple(path for path in ranks if path not in now),
        around=(*(path for path in found if path not in ranks), *_of_the_array(directory)),
    )


def of_rank(directory: Path, rank: int) -> Outputs | None:
    """The files of a rank's newest attempt, to which our workers point; a script's is known on one node. Else None."""
    link = directory / "logs" / "ranks" / f"rank{rank}"
    if link.exists():
        return Outputs(ranks=tuple(_printed(files.real(link))))
    job = contents.known(directory, contents.JOB)
    attempts = sorted((directory / "logs" / "ranks").glob("*/attempt_*"), key=lambda path: path.stat().st_mtime_ns)
    if job.get("nodes") == 1 and attempts and (attempts[-1] / str(rank)).is_dir():
        return Outputs(ranks=tuple(_printed(attempts[-1] / str(rank))))
    return None


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a file, without their ends."""
    try:
        with io.TextIOWrapper(files.opened(path), errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    except OSError as error:
        return [f"(it cannot be read: {error.strerror or error})"]


def count(paths: Sequence[Path]) -> int:
    """Lines of files."""
    found = 0
    for path in paths:
        with contextlib.suppress(OSError), files.opened(path) as file:
            found += sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return found


def _of_the_array(directory: Path) -> Iterator[Path]:
    """Files of submitit about a sweep's point, whose array has one folder for all of its tasks."""
    submission = contents.known(directory, state.SUBMISSION)
    folder = home.here(directory, Path(submission.get("comment") or directory))
    if not folder.is_relative_to(directory):
        paths = (folder / f"{submission.get('job_id')}_0_log.{kind}" for kind in ("err", "out"))
        yield from filter(_holds_something, paths)


def _printed(folder: Path) -> list[Path]:
    """Log files below a folder with something in them: those of errors first, then by name."""
    found = (path for path in folder.rglob("*") if path.suffix in _SUFFIXES and _holds_something(path))
    return sorted(found, key=lambda path: (not _of_errors(path), path.as_posix()))


def _holds_something(path: Path) -> bool:
    """True for a file that is not empty; a link may lead nowhere."""
    return path.is_file() and path.stat().st_size > 0


def _of_errors(path: Path) -> bool:
    return path.suffix == ".err" or path.name == "stderr.log"


def _newest_attempt(root: Path) -> str:
    """The rendezvous id of the ranks that were started last."""
    folders = [path for path in root.glob("*") if path.is_dir() and not path.is_symlink()]
    newest = max(folders, key=lambda path: path.stat().st_mtime_ns, default=None)
    return "" if newest is None else newest.name[:-_RANDOM]
