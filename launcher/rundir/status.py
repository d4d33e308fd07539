"""States of runs as users see them, from a run's files and, if these are not enough, from Slurm.

The job's first node writes ``state.json``, which is final once it says that the run has ended. A run on this machine
whose keeper is gone is ``lost``; a run on another host is judged by its heartbeat (``launcher.rundir.keeper``). For all
other runs Slurm is asked, once for many. A submission whose job id was never recorded is found by the job's comment. A
copy is ``prepared``, whatever its original does. If a file that determines the state cannot be read, the state is
``unreadable``.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from launcher.base import files, secret
from launcher.base.errors import SubmitError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.process import Timer
from launcher.job import events
from launcher.rundir import contents, failure, health, home, keeper, output, results, run_names, state
from launcher.rundir.results import Progress
from launcher.rundir.state import State
from launcher.saved import checkpoints
from launcher.slurm import jobs, states
from launcher.slurm.jobs import QueuedJob

_NOT_SUBMITTED = "recorded, but not submitted: `launch resume {}` submits it"
_RETRY = "`launch resume {}` tries again, and a corrected run of this name replaces it"
_GROWING = (results.METRICS, events.FILE)  # Growing files that rows are read from, and that may be missing.
ASK_S = {"local": 1.0, "slurm": 15.0}  # Seconds between two queries, so that not every look asks the controller.
_FULL_BYTES = 1 << 16  # On a disk with less than this left, a state file or a log may not have been written.


class _Judged(NamedTuple):
    state: State
    reason: str | None
    cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """One run as ``launch status`` shows it, with the cause of its end if known."""

    id: str
    directory: str
    state: State
    job_id: str | None
    progress: Progress
    reason: str | None
    cause: str | None = None

    def as_dict(self) -> JsonObject:
        """The row of ``status --json``; only a running run has time left."""
        now = asdict(self.progress)
        if self.state != "running":
            now["seconds_left"] = now["left_is"] = None
        row = {key: getattr(self, key) for key in ("id", "directory", "state", "job_id")}
        return {**row, "step": now.pop("step"), "reason": self.reason, **now}


def read(run: Path) -> RunState:
    """The state of one run."""
    return read_all([run])[0]


class PolledState:
    """The state of a run that is polled often: changes of its file show at once, the rest is queried now and then."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._ask()

    def _ask(self) -> None:
        self._due = Timer(ASK_S[kind(self._run) or "local"])
        self._noted, self.row = _noted(self._run), read(self._run)

    def look(self) -> bool:
        """True if the state was queried again, so that :attr:`row` may have changed."""
        if not self._due.is_due() and _noted(self._run) == self._noted:
            return False
        self._ask()
        return True


def _noted(run: Path) -> State | None:
    return contents.known(run, contents.STATE).get("state")


def read_newest(directories: Sequence[Path], count: int) -> list[RunState]:
    """The states of the last ``count`` runs, and of earlier ones that are or may be active, in order."""
    newest = set(directories[max(0, len(directories) - count) :])
    rows = read_all([run for run in directories if run in newest or may_live(run)])
    return [row for row in rows if row.state in state.ACTIVE or Path(row.directory) in newest]


def read_all(directories: Sequence[Path]) -> list[RunState]:
    """The states of runs, in order; asks Slurm once for all runs whose files do not say that they have ended."""
    by_files = {run: read_files(run) for run in directories}
    ids: dict[Path, str | None] = {}
    known: Mapping[str, QueuedJob] = {}
    silent: str | None = None
    open_runs = [run for run, found in by_files.items() if found.on_slurm]
    try:
        unnoted = any(contents.known(run, state.SUBMISSION).get("job_id") is None for run in open_runs)
        comments = jobs.jobs_by_comment() if unnoted else {}
        ids = {run: adopted(run, comments) for run in open_runs}
        known = jobs.look(job for job in ids.values() if job is not None)
    except SubmitError as error:
        silent = str(error)
    rows = []
    for run in directories:
        # Files first: what they say is shown even if Slurm does not answer or has forgotten the job.
        found = _Judged(by_files[run].word, by_files[run].reason, by_files[run].cause)
        if run in open_runs and silent is not None:
            found = _Judged(*keeper.without_slurm(run, found.state, silent))
        elif ids.get(run) is not None:
            found = _from_slurm(run, by_files[run].content, known.get(str(ids[run])))
        rows.append(_row(run, found))
    return rows


def adopted(run: Path, comments: Mapping[str, str] | None = None) -> str | None:
    """The run's job id: as recorded, or that of the job with its comment; None if nothing was submitted.

    A launcher may end between the submission and its record; then the job is found by its comment, among ``comments``
    if given, and recorded here. Raises SubmitError: Slurm does not answer, or a file of the run cannot be read.
    """
    submission = contents.read(run, state.SUBMISSION) or {}
    if submission.get("kind") != "slurm":
        return None
    job_id: str | None = submission.get("job_id")
    if job_id is not None:
        return job_id
    job_id = (contents.read(run, contents.STATE) or {}).get("job_id")
    if job_id is None:
        job_id = (jobs.jobs_by_comment() if comments is None else comments).get(submission.get("comment", ""))
    if job_id is None:
        return None
    if "index" in submission:
        job_id = f"{job_id.partition('_')[0]}_{submission['index']}"
    files.write_atomically(run / state.SUBMISSION, {**submission, "job_id": job_id})
    return job_id


def has_started(run: Path) -> bool:
    """True if a job of the run has ever done anything, so that the run must not be removed."""
    left = any((run / name).exists() for name in (contents.STATE, results.METRICS, "logs/ranks", "logs/node.out"))
    return left or any((run / "checkpoints").glob("*"))


def kind(run: Path) -> str | None:
    """The kind of cluster that the run was submitted to, ``local`` or ``slurm``; None if it was not."""
    return contents.known(run, state.SUBMISSION).get("kind")


def _from_slurm(run: Path, content: JsonObject | None, job: QueuedJob | None) -> _Judged:
    content = contents.known(run, contents.STATE) or content  # It may have ended during the query.
    if content is not None and content["state"] in state.ENDED:
        return _kept(content)
    if job is None and keeper.is_fresh(run):  # Another cluster's Slurm may see this folder, too.
        return _Judged(*keeper.from_elsewhere(run, "queued" if content is None else content["state"]))
    if job is None:
        return _Judged("lost", "Slurm no longer knows the job, and the run directory does not say how it ended")
    cause: str | None
    word, reason, cause = states.translate(job, started=content is not None)
    if job.state == "OUT_OF_MEMORY":
        failure.note_out_of_memory_of_slurm(run)
    if job.state == "FAILED":
        submission = contents.known(run, state.SUBMISSION)
        place = home.here(run, Path(submission.get("comment", "")))
        reason = output.not_started(place / f"{submission.get('job_id')}_0_log.err") or reason
    if word == "running" and content is not None and content["state"] == "requeued":
        word = "requeued"
    before = _Judged(word, None) if content is None else _kept(content)
    if word == "requeued":
        cause = before.cause
    return _Judged(word, "; ".join(text for text in (before.reason, reason) if text) or None, cause)


def _kept(content: JsonObject) -> _Judged:
    return _Judged(content["state"], content.get("reason"), content.get("cause"))


def _row(run: Path, found: _Judged) -> RunState:
    word, reason, cause = found
    claimed = home.original(run) is None
    if word == "running" and (now := checkpoints.pause_text(run)) is not None:
        reason = now if reason is None else f"{reason}; {now}"
    told = health.beside(run, word, reason)
    return RunState(
        id=run_names.id_of(run),
        directory=str(run),
        state=word,
        job_id=contents.known(run, state.SUBMISSION).get("job_id") if claimed else None,
        progress=results.read_progress(run),
        reason=None if told is None else secret.redacted(told),
        cause=cause,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateByFiles:
    """The state of a run by its files alone."""

    word: State  # The state.
    reason: str | None  # The reason for it.
    cause: str | None = None  # The cause of an end; None if unknown.
    content: JsonObject | None = None  # ``state.json``, if there is one.
    on_slurm: bool = False  # True if Slurm knows more.


def may_live(run: Path) -> bool:
    """False if ``state.json``, the only file opened, says that the run has ended, or if it was never submitted."""
    content = contents.known(run, contents.STATE)
    return not _has_ended(content) if content else contents.exists(run, state.SUBMISSION)


def read_files(run: Path) -> StateByFiles:
    """The state of a run from its files; a file that cannot be read becomes the reason."""
    try:
        content = contents.read(run, contents.STATE)
        submission = contents.read(run, state.SUBMISSION) or {}
        there = None if _has_ended(content) else home.original(run)
        if there is not None and (content or submission):
            return StateByFiles(word="prepared", reason=_copied(run, there, content))
        word, reason, cause = _by_files(run, content, submission)
    except contents.BadRecord as bad:
        return StateByFiles(word="unreadable", reason=bad.short)
    on_slurm = not _has_ended(content) and submission.get("kind") == "slurm"
    reason = "; ".join(text for text in (reason, damage(run)) if text) or None
    return StateByFiles(word=word, reason=reason, cause=cause, content=content, on_slurm=on_slurm)


def damage(run: Path) -> str | None:
    """The finding about an unreadable file that is needed to resume or show a run; None if there is none."""
    try:
        for name in (contents.SPEC, contents.JOB):
            contents.read(run, name)
        for name in _GROWING:
            contents.check_kind(run, name)
    except contents.BadRecord as bad:
        return bad.short
    return None


def _has_ended(content: JsonObject | None) -> bool:
    return content is not None and content["state"] in state.ENDED


def _copied(run: Path, there: Path, content: JsonObject | None) -> str:
    was = "queued" if content is None else content["state"]
    return f"a copy of {there}, which was {was}: `launch resume {run_names.typed(run)}` continues the copy on its own"


def _by_files(run: Path, content: JsonObject | None, submission: JsonObject) -> _Judged:
    kept = keeper.state_of(run, content, submission)
    if kept is not None and kept[0] == "lost":
        reason = output.never_began(run) if content is None else kept[1]
        free = shutil.disk_usage(run).free  # A process on a full disk could not write why it ended.
        full = f"; the disk is full: it has {free >> 10} KiB left" if free < _FULL_BYTES else ""
        return _Judged("lost", f"{reason}{full}", "disk" if full else "rank_killed")
    if kept is not None:
        return _Judged(*kept)
    if content is not None:
        return _kept(content)
    if submission.get("job_id") is not None:
        return _Judged("queued", None)
    if (failed := contents.read(run, state.NOT_SUBMITTED)) is not None:
        reason = f"its submission failed: {failed['reason']}; {_RETRY.format(run_names.typed(run))}"
        return _Judged("failed", reason)
    return _Judged("prepared", _NOT_SUBMITTED.format(run_names.typed(run)) if submission else None)
