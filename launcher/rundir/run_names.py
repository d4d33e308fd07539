"""Names of runs: which folders are runs, sweeps or groups, and which run a name refers to, from any folder.

A folder below ``runs/`` that is neither a run nor a sweep is a group (``run.name=group/a``). Its runs are found by
``group/a``, or just ``a`` if no other run has that name. A name that matches several runs is refused
(:class:`Ambiguous`): a guess might cancel the wrong run.
"""

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from launcher.base import files
from launcher.rundir import contents, home, signature, state


def is_sweep(path: Path) -> bool:
    """True for the folder of a sweep."""
    return contents.exists(path, state.SWEEP)


def is_point(run: Path) -> bool:
    """True for a run that is a point of a sweep."""
    return is_sweep(run.parent)


def runs_of(path: Path) -> list[Path]:
    """The run in a run directory, or the runs in a sweep's folder; empty if it is neither."""
    if is_sweep(path):
        return [each for each in _folders(path) if contents.exists(each, contents.SPEC)]
    return [path] if contents.exists(path, contents.SPEC) else []


def below(root: Path) -> Iterator[tuple[Path, list[Path]]]:
    """The runs and sweeps in a folder and its groups, each with its runs; links are followed to runs, not to groups."""
    for path in _folders(root):
        runs = runs_of(path)
        if runs or is_sweep(path):
            yield path, runs
        elif not path.is_symlink():
            yield from below(path)


def answers(path: Path, word: str) -> bool:
    """True if a name matches a run, sweep or point: its own name, with or without the groups and sweep above it."""
    parts = PurePath(word).parts
    return bool(parts) and path.parts[-len(parts) :] == parts


def id_of(run: Path) -> str:
    """The displayed name of a run: for a point including its sweep, else ``run.name`` including groups."""
    if is_point(run):
        return f"{run.parent.name}/{run.name}"
    given = contents.known(run, contents.SPEC).get("run", {}).get("name")
    return given if isinstance(given, str) and answers(run, given) and "/" in given else run.name


def typed(run: Path) -> str:
    """The displayed name of a run, quoted for a shell, since a folder may have any name."""
    return shlex.quote(id_of(run))


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry))
    except OSError:
        return []
    return [path / name for name in names]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # A link to itself.
        return False


_LIST_BYTES = 1 << 18  # Thousands of runs; from a longer list, runs that no longer exist are removed.


class Ambiguous(LookupError):
    """Raised for a name that matches several runs or sweeps."""

    def __init__(self, name: str, candidates: Sequence[Path]) -> None:
        """Store the name and the directories that it may mean."""
        self.name, self.candidates = name, tuple(candidates)
        super().__init__(name)


def find(words: Sequence[str], folder: Path) -> list[Path]:
    """Run directories by name, path or job id, all of a sweep's; without words all below ``runs/``, or all known."""
    root = folder / "runs"
    if not words and not root.is_dir():
        return remembered()
    if not words:
        in_order = sorted(below(root), key=lambda found: (files.changed_at(found[0]), found[0].name))
        return [run for _, runs in in_order for run in runs]
    return [run for word in words for place in places(word, folder) for run in runs_of(place)]


def places(name: str, folder: Path) -> list[Path]:
    """The directory of the run or sweep that a name refers to, or the runs of an array by its job id.

    A name or path that leads to a run from this folder comes first. ``SWEEP/POINT`` names a point of any sweep, as does
    ``POINT`` alone if it is unique. Raises FileNotFoundError if nothing matches, :class:`Ambiguous` if several do.
    """
    near = [path.absolute() for path in (folder / "runs" / name, folder / name) if runs_of(path.absolute())]
    near = [path for n, path in enumerate(near) if not any(path.samefile(other) for other in near[:n])]
    by_id = _by_job_id(name)
    found = [*near, *(run for run in by_id if run not in near)] or _elsewhere(name, folder)
    one_array = found == by_id and all(run.parent == by_id[0].parent and is_point(run) for run in by_id)
    if not found:
        raise FileNotFoundError(name)
    if len(found) > 1 and not one_array:
        raise Ambiguous(name, found)
    return found


def _by_job_id(name: str) -> list[Path]:
    if re.fullmatch(r"\d+(_\d+)?", name) is None:
        return []
    ids = ((path, contents.known(path, state.SUBMISSION).get("job_id")) for path in remembered())
    found = [path for path, job in ids if job is not None and name in (job, job.partition("_")[0])]
    return [path for path in found if home.original(path) is None]  # The job is the original's.


def _elsewhere(name: str, folder: Path) -> list[Path]:
    here = [path for place, runs in below(folder / "runs") for path in (place, *runs)]
    found: dict[str, Path] = {}
    for path in (*here, *filter(runs_of, map(Path, _noted()))):
        if answers(path, name):
            found.setdefault(os.path.realpath(path), path.absolute())
    return list(found.values())


def name_of(run: Path, folder: Path) -> str:
    """The shortest name by which :func:`find` finds exactly this run: its name below ``runs/``, else its path."""
    root = folder / "runs"
    return str(run.relative_to(root) if run.is_relative_to(root) else run)


def remember(run: Path) -> None:
    """Add a run or sweep and its signature to the user's lists; a list that cannot be written is ignored."""
    with contextlib.suppress(OSError):
        signature.append_line(list_of_runs(), str(run), _LIST_BYTES, lambda line: Path(line).is_dir())
    signature.note(run)


def remembered() -> list[Path]:
    """Runs in the user's list that still exist, oldest first."""
    return [path for path in map(Path, _noted()) if contents.exists(path, contents.SPEC)]


def _noted() -> list[str]:
    return list(dict.fromkeys(signature.read_lines(list_of_runs())))


def list_of_runs() -> Path:
    """The path of the user's list of runs and sweeps, wherever they were recorded."""
    return signature.user_list("runs.txt")
