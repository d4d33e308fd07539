"""Ask runs to save and end, or end them at once.

The request is a file in the run's folder, which the run's own node finds, so a run can be cancelled from any host that
sees the folder. Only torchrun of a run that is to be killed, or has no keeper, is signalled from here.
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
    """Send a run's processes the signal to save and end; False where it is not running; SubmitError by Slurm."""
    return stop_all([directory], how)[0]


def stop_all(directories: Sequence[Path], how: signal.Signals) -> list[bool]:
    """Stop many runs by :func:`stop`, with one question and one command to Slurm for all."""
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
            raise SubmitError(f"{row.id} is run by another user as {agent}, who alone may end it") from None
    if row.reason is not None and keeper.is_elsewhere(directory, content):
        say(f"launch: {row.id}: {row.reason}; the request is left in its folder, where its keeper looks for it")


def _request(directory: Path) -> None:
    contents.require_no_links(directory)
    try:
        (directory / state.CANCEL_REQUEST).touch()
    except OSError as error:
        why = error.strerror or error
        raise SubmitError(f"{directory} cannot be written, where the request to end is left: {why}") from None


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
            say(f"launch: {row.id}: {error}; the request is left in its folder: its node finds it, saves and ends")
        return
    for row in rows:
        if row.job_id in refused:
            continue
        if row in save:
            say(f"launch: {row.id} saves a checkpoint and ends; cancel it again to end it at once")
        else:
            reason = "cancelled" if row in train else "cancelled before it had started"
            state.put(Path(row.directory), "cancelled", reason=reason)
    if refused:
        raise SubmitError("; ".join(dict.fromkeys(refused.values())))
