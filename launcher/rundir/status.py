"""Runs as a person sees them: found by name from any folder, in the state that files or, beyond these, Slurm tells.

``state.json`` is written by the job's first node and believed once it says that the run has ended. A run on this
machine whose keeper is gone is ``lost``; of one on another host its heartbeat tells (``launcher.rundir.keeper``). For
all other runs Slurm is asked, once for many: its word counts, with the file's reason beside it. A submission whose job
id was never noted (the launcher was killed in between) is found by the job's comment, which is the folder that it was
submitted from. What a copy says of a job is about its original (``launcher.rundir.home``), and what cannot be read is
told as the state ``unreadable`` with its reason. Names are looked up below ``runs/``, then in the user's list of runs
recorded anywhere; whether a run is the user's own is told by its bytes (``launcher.rundir.signature``). A word that
several runs answer to is refused (:class:`Ambiguous`): a guess might cancel another run than was meant.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.base import files, secret
from launcher.base.errors import SubmitError
from launcher.rundir import (
    by_files,
    contents,
    failure,
    health,
    home,
    keeper,
    lease,
    names,
    out_of_memory,
    progress,
    signature,
    state,
)
from launcher.rundir.state import RunState
from launcher.saved import paused
from launcher.slurm import jobs, states
from launcher.slurm.jobs import QueuedJob

_LIST_BYTES = 1 << 18
"""Thousands of runs; a longer list loses those that are gone."""


def read(run: Path) -> RunState:
    """The state of one run."""
    return read_all([run])[0]


def read_newest(directories: Sequence[Path], count: int) -> list[RunState]:
    """The states of the last ``count`` runs and, in order with them, of those before that live or may live.

    Of a run that has ended before these one small file is read, so that thousands of them are no matter.
    """
    newest = set(directories[max(0, len(directories) - count) :])
    rows = read_all([run for run in directories if run in newest or by_files.may_live(run)])
    return [row for row in rows if row.state in state.ACTIVE or Path(row.directory) in newest]


def read_all(directories: Sequence[Path]) -> list[RunState]:
    """The states of runs, in order; Slurm is asked once for all of those whose end no file tells."""
    told = {run: by_files.told(run) for run in directories}
    ids: dict[Path, str | None] = {}
    known: Mapping[str, QueuedJob] = {}
    silent: str | None = None
    open_runs = [run for run, files_say in told.items() if files_say.on_slurm]
    try:
        comments = jobs.jobs_by_comment() if any(_is_unnoted(run) for run in open_runs) else {}
        ids = {run: adopted(run, comments) for run in open_runs}
        known = jobs.look(job for job in ids.values() if job is not None)
    except SubmitError as error:
        silent = str(error)
    found = []
    for run in directories:
        # Files first: what they know is shown also where Slurm is silent or has forgotten the job.
        word, reason = told[run].word, told[run].reason
        if run in open_runs and silent is not None:
            word, reason = keeper.without_slurm(run, word, silent)
        elif ids.get(run) is not None:
            word, reason = _from_slurm(run, told[run].content, known.get(str(ids[run])))
        found.append(_row(run, word, reason))
    return found


def adopted(run: Path, comments: Mapping[str, str] | None = None) -> str | None:
    """The run's job id: as written, or of the job that carries its comment; None where nothing was submitted.

    A launcher may end between the submission and the note of it; then the job is found and noted here.

    Args:
        run: The run directory.
        comments: Slurm's jobs by their comments, where they are known already.

    Raises:
        SubmitError: Slurm does not answer, or a file of the run cannot be read.
    """
    submission = contents.read(run, state.SUBMISSION) or {}
    if submission.get("kind") != "slurm" or submission.get("job_id") is not None:
        return submission.get("job_id") if submission.get("kind") == "slurm" else None
    content = contents.read(run, contents.STATE) or {}
    job_id: str | None = content.get("job_id")
    if job_id is None:
        job_id = (jobs.jobs_by_comment() if comments is None else comments).get(submission.get("comment", ""))
    if job_id is None:
        return None
    if "index" in submission:
        job_id = f"{job_id.partition('_')[0]}_{submission['index']}"
    files.write_atomically(run / state.SUBMISSION, {**submission, "job_id": job_id})
    return job_id


class Ambiguous(LookupError):
    """A word that several runs or sweeps answer to."""

    def __init__(self, name: str, candidates: Sequence[Path]) -> None:
        """Hold the word and the directories of what it may mean."""
        self.name, self.candidates = name, tuple(candidates)
        super().__init__(name)


def find(words: Sequence[str], folder: Path) -> list[Path]:
    """Run directories by name, path or job id, of a sweep all; without names all below ``runs/``, else all known ones.

    Args:
        words: Each is looked up as by :func:`places`.
        folder: The working folder.

    Raises:
        FileNotFoundError: With the name that is no run.
        Ambiguous: With the name that is several.
    """
    root = folder / "runs"
    if not words and not root.is_dir():
        return remembered()
    if not words:
        in_order = sorted(names.below(root), key=lambda found: (_written(found[0]), found[0].name))
        return [run for _, runs in in_order for run in runs]
    return [run for word in words for place in places(word, folder) for run in names.runs_of(place)]


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # It was removed meanwhile.
        return 0.0


def places(name: str, folder: Path) -> list[Path]:
    """The directory of the run or sweep that a word names, or the runs of an array by its job id.

    A name or path that leads to a run from this folder comes before names of runs elsewhere; a job id comes before
    neither. ``SWEEP/POINT`` names a point of a sweep that lies anywhere, and ``POINT`` alone where only one has it.

    Raises:
        FileNotFoundError: It names nothing.
        Ambiguous: It names several.
    """
    near = [path.absolute() for path in (folder / "runs" / name, folder / name) if names.runs_of(path.absolute())]
    near = [path for n, path in enumerate(near) if not any(path.samefile(other) for other in near[:n])]
    by_id = _by_job_id(name)
    found = [*near, *(run for run in by_id if run not in near)] or _elsewhere(name, folder)
    one_array = found == by_id and all(run.parent == by_id[0].parent and names.is_point(run) for run in by_id)
    if not found:
        raise FileNotFoundError(name)
    if len(found) > 1 and not one_array:
        raise Ambiguous(name, found)
    return found


def _by_job_id(name: str) -> list[Path]:
    """Runs of a job, or of an array whose tasks are ``<name>_0``, ``<name>_1``, ..."""
    if re.fullmatch(r"\d+(_\d+)?", name) is None:
        return []
    ids = ((path, contents.known(path, state.SUBMISSION).get("job_id")) for path in remembered())
    found = [path for path, job in ids if job is not None and name in (job, job.partition("_")[0])]
    return [path for path in found if home.original(path) is None]  # The job is the original's.


def _elsewhere(name: str, folder: Path) -> list[Path]:
    """Runs, sweeps and points of sweeps of that name, below ``runs/`` here and recorded anywhere."""
    here = [path for place, runs in names.below(folder / "runs") for path in (place, *runs)]
    found: dict[str, Path] = {}
    for path in (*here, *filter(names.runs_of, map(Path, _noted()))):
        if names.answers(path, name):
            found.setdefault(os.path.realpath(path), path.absolute())
    return list(found.values())


def name_of(run: Path, folder: Path) -> str:
    """The shortest word that :func:`find` takes for this run and no other: its name below ``runs/``, else its path."""
    root = folder / "runs"
    return str(run.relative_to(root) if run.is_relative_to(root) else run)


def is_point(run: Path) -> bool:
    """True for the run of a sweep's point."""
    return names.is_point(run)


def remember(run: Path) -> None:
    """Note where a run or sweep of this user lies, for :func:`find` from other folders, and what it would start.

    A list that cannot be kept is no reason to fail.
    """
    with contextlib.suppress(OSError):
        path = _list()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.stat().st_size > _LIST_BYTES:
            lines = (f"{line}\n" for line in _noted() if Path(line).is_dir())
            files.write_bytes_atomically(path, os.fsencode("".join(lines)))
        with path.open("ab") as file:
            file.write(os.fsencode(f"{run}\n"))  # One short write in append mode: launchers do not mix their lines.
    signature.note(run)


def remembered() -> list[Path]:
    """Runs that were noted and still exist, oldest first."""
    return [path for path in map(Path, _noted()) if contents.exists(path, contents.SPEC)]


def is_own(run: Path) -> bool:
    """True if a run or sweep is, byte by byte, what this user recorded, or trusted, at the place where it lies."""
    return signature.is_noted(run)


def has_started(run: Path) -> bool:
    """True if a job of the run has ever done anything: nothing of it may then be taken away."""
    left = any((run / name).exists() for name in ("state.json", "metrics.jsonl", "logs/ranks", "logs/node.out"))
    return left or any((run / "checkpoints").glob("*"))


def kind(run: Path) -> str | None:
    """The cluster that the run was submitted to: ``local`` or ``slurm``; None where it was not."""
    return contents.known(run, state.SUBMISSION).get("kind")


def _noted() -> list[str]:
    try:
        return list(dict.fromkeys(os.fsdecode(files.read_bytes(_list(), files.MOST_OF_A_RECORD)).splitlines()))
    except OSError:
        return []


def list_of_runs() -> Path:
    """The user's list of runs and sweeps, wherever they were recorded."""
    return _list()


def _list() -> Path:
    from platformdirs import user_state_path  # Late, because a planning import stays under 0.1 s.

    return user_state_path("launch") / "runs.txt"


def _is_unnoted(run: Path) -> bool:
    return contents.known(run, state.SUBMISSION).get("job_id") is None


def _from_slurm(run: Path, content: dict[str, Any] | None, job: QueuedJob | None) -> tuple[state.State, str | None]:
    """State and reason by Slurm of a run that no file says has ended; the file's reason for a stop is kept beside."""
    content = contents.known(run, contents.STATE) or content  # It may have ended while Slurm was asked.
    if content is not None and content["state"] in state.ENDED:
        return content["state"], content.get("reason")
    if job is None and lease.fresh(run):  # Another cluster's Slurm may see this folder, too.
        return keeper.from_elsewhere(run, "queued" if content is None else content["state"])
    if job is None:
        return "lost", "Slurm no longer knows the job, and the run directory does not say how it ended"
    word, reason = states.translate(job, started=content is not None)
    if job.state == "OUT_OF_MEMORY":
        out_of_memory.note_of_slurm(run)
    if job.state == "FAILED":
        reason = failure.not_started(_log(run)) or reason
    if word == "running" and content is not None and content["state"] == "requeued":
        word = "requeued"
    before = (content or {}).get("reason")
    return word, "; ".join(text for text in (before, reason) if text) or None


def _log(run: Path) -> Path:
    """The file with srun's own messages about the run's job."""
    submission = contents.known(run, state.SUBMISSION)
    return home.here(run, Path(submission.get("comment", ""))) / f"{submission.get('job_id')}_0_log.err"


def _row(run: Path, word: state.State, reason: str | None) -> RunState:
    claimed = home.original(run) is None
    if word == "running" and (now := paused.text(run)) is not None:
        reason = now if reason is None else f"{reason}; {now}"
    return RunState(
        id=names.id_of(run),
        directory=str(run),
        state=word,
        job_id=contents.known(run, state.SUBMISSION).get("job_id") if claimed else None,
        progress=progress.read(run),
        reason=None if (said := health.beside(run, word, reason)) is None else secret.hidden(said),
    )
