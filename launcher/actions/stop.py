"""Ask runs to save and end, or kill them at once.

The request is a file in the run's folder, which the run's own node finds, so a run can be cancelled from any host that
sees the folder. This process signals torchrun only to kill a run, or if the run has no keeper.
"""

import signal
from collections.abc import Sequence
from pathlib import Path

from launcher.base.errors import SubmitError
from launcher.base.terminal import say
from launcher.rundir import contents, keeper, state, status
from launcher.rundir.status import RunState
from launcher.slurm import jobs


def stop(directory: Path, how: signal.Signals) -> bool:
    """Send a run's processes the signal to save and end; False if it is not running; SubmitError from Slurm."""
    return stop_all([directory], how)[0]


def stop_all(directories: Sequence[Path], how: signal.Signals) -> list[bool]:
    """Stop many runs like :func:`stop`, with one query and one command to Slurm for all."""
    rows = status.read_all(directories)
    live = dict.fromkeys(row for row in rows if row.state not in (*state.ENDED, "prepared"))
    on_slurm = [row for row in live if status.kind(Path(row.directory)) == "slurm"]
    _stop_jobs(on_slurm)
    for row in live:
        if row not in on_slurm:
            _stop_here(row, how)
    return [row in live for row in rows]


def _stop_here(row: RunState, how: signal.Signals) -> None:
    directory = Path(row.directory)
    _request(directory)
    content = contents.known(directory, contents.STATE)
    if how == signal.SIGKILL or not keeper.reads_requests(content):
        agent = keeper.agent(directory, content)
        try:
            if agent is not None:
                agent.send(how, group=True)
        except PermissionError:
            raise SubmitError(f"{row.id} runs as {agent} of another user, and only that user can end it") from None
    if row.reason is not None and keeper.is_elsewhere(directory, content):
        say(f"launch: {row.id}: {row.reason}; the request is in its folder, where its keeper will find it")


def _request(directory: Path) -> None:
    contents.require_no_links(directory)
    try:
        (directory / state.CANCEL_REQUEST).touch()
    except OSError as error:
        why = error.strerror or error
        raise SubmitError(f"the request to end cannot be written to {directory}: {why}") from None


def _stop_jobs(rows: Sequence[RunState]) -> None:
    train = {row for row in rows if row.state == "running" and Path(row.directory, "state.json").exists()}
    save = {row for row in train if not Path(row.directory, state.CANCEL_REQUEST).exists()}
    for row in rows:
        _request(Path(row.directory))
    try:
        refused = jobs.signal_jobs((str(row.job_id) for row in rows if row in save), "USR2")
        refused |= jobs.cancel([str(row.job_id) for row in rows if row not in save])
    except SubmitError as error:
        if not all(row in train and keeper.is_fresh(Path(row.directory)) for row in rows):
            raise
        for row in rows:
            say(f"launch: {row.id}: {error}; the request is in its folder: its node will find it, save and end")
        return
    for row in rows:
        if row.job_id in refused:
            continue
        if row in save:
            say(f"launch: {row.id} saves a checkpoint and ends; cancel it again to kill it at once")
        else:
            reason = "cancelled" if row in train else "cancelled before it started"
            state.put(Path(row.directory), "cancelled", reason=reason)
    if refused:
        raise SubmitError("; ".join(dict.fromkeys(refused.values())))
