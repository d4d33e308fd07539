"""A recorded run started here or queued on Slurm, once, whatever fails.

A file lock keeps two launchers of one run apart; a job whose id was never noted is found again. Submitit starts a
controller on this machine, and the controller our task, with the working folder off ``sys.path``: the controller, whose
command line cannot be chosen, gets a variable, and the task ``-P`` in its place.
"""

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigErrors, Refused, SubmitError
from launcher.base.process import Process
from launcher.job import events
from launcher.job.torchrun import SAFE_PATH
from launcher.rundir import contents, home, keeper, run_names, state, status
from launcher.saved import checkpoints
from launcher.spec import ClusterSpec, RunSpec
from launcher.submission import interrupts, slurm_jobs
from launcher.submission.node import NodeTask

_FOREVER_MIN = 60 * 24 * 365  # Submitit ends a local job after its time limit, two minutes unless it is given one.


def submit(directory: Path, spec: RunSpec) -> str:
    """Start or queue a new run that was recorded and return its job id (on this machine a process id).

    One that the cluster refuses as it is leaves nothing behind, so that the corrected one may have its name.
    SubmitError: Slurm is missing, does not answer or refuses; ConfigErrors: it has no such partition, account or node.
    """
    with one_at_a_time(directory):
        try:
            return _submit(directory, spec.cluster)
        except (ConfigErrors, Refused):
            forget(directory)  # Its words have to change, and then make another plan.
            raise
        except SubmitError as error:
            _note_failure(directory, str(error))
            raise


def forget(directory: Path) -> None:
    """Remove a new run that was recorded, unless it was started, or nobody can tell."""
    if not (directory / state.SUBMISSION).exists() and not status.has_started(directory):
        shutil.rmtree(directory, ignore_errors=True)


def _note_failure(directory: Path, reason: str) -> None:
    if (directory / state.SUBMISSION).exists() or status.has_started(directory):
        return
    with contextlib.suppress(OSError):
        files.write_atomically(directory / state.NOT_SUBMITTED, {"reason": reason})


def resubmit(directory: Path, spec: RunSpec, *, before: Callable[[], None] = lambda: None) -> str:
    """Start or queue a run again that has ended, or that nobody has submitted; of two launchers one does.

    ``before`` is called once it is known that nobody else submits or runs it. Errors are those of :func:`submit`.
    """
    with one_at_a_time(directory):
        now = status.read(directory)
        if now.state in ("queued", "running", "requeued"):
            why = f" ({now.reason})" if now.reason else ""
            raise SubmitError(f"{now.id} is {now.state}: cancel it first, or wait{why}")
        if now.state == "unreadable":
            raise SubmitError(f"{now.id} cannot go on: {now.reason}")
        settle(directory)
        before()
        failed_before = files.read_json(directory / state.NOT_SUBMITTED)
        state.forget_ending(directory)
        try:
            return _submit(directory, spec.cluster)
        except (ConfigErrors, SubmitError) as error:
            if failed_before is not None:  # It has still not started.
                _note_failure(directory, str(error))
            raise


def _submit(directory: Path, cluster: ClusterSpec) -> str:
    try:
        if cluster.kind == "slurm":
            return slurm_jobs.submit_run(directory, cluster)
        slurm_jobs.forget_tasks(directory)
        return _start_here(directory, cluster)
    except OSError as error:
        raise SubmitError(f"the run directory {directory} cannot be written: {error.strerror or error}") from None


def submit_all(
    recorded: Sequence[tuple[Path, RunSpec]], parallelism: int | None, live: Sequence[str] = ()
) -> list[str]:
    """Queue recorded runs of a sweep on Slurm, one array for each shape of resources; the arrays' job ids.

    At most ``parallelism`` of the sweep run at once, the jobs ``live`` among them; None leaves it to Slurm. Where they
    leave no room, what is submitted here waits for their end. Errors are those of :func:`submit`.
    """
    try:
        return slurm_jobs.submit_arrays(recorded, parallelism, live)
    except (ConfigErrors, SubmitError) as error:
        for directory, _ in recorded:
            _note_failure(directory, str(error))
        raise


def _start_here(directory: Path, cluster: ClusterSpec) -> str:
    import submitit

    executor = submitit.LocalExecutor(folder=directory / "logs" / "submitit", python=controller_python())
    executor.update_parameters(**_local_parameters(cluster))
    interrupts.look()
    with interrupts.shielded(), safe_path_for_controller():
        job = executor.submit(NodeTask(), str(directory))
        # A program that goes on for hours has no zombies, and no warning of a process that nobody waits for.
        threading.Thread(target=job.wait, daemon=True).start()
        process, job_id = Process.of(int(job.job_id)), str(job.job_id)
        submission = {"job_id": job_id, "kind": "local", "process": process.as_dict()}
        try:
            files.write_atomically(directory / state.SUBMISSION, submission)
            events.add(directory, "queued", "started on this machine", step=None, job_id=job_id)
            keeper.begin_heartbeat(directory, process)
        except OSError:  # A job that nobody knows of must not go on.
            process.send(signal.SIGKILL)
            (directory / state.SUBMISSION).unlink(missing_ok=True)
            raise
        interrupts.note_begun(run_names.name_of(directory, Path.cwd()))
    return job_id


def _local_parameters(cluster: ClusterSpec) -> dict[str, Any]:
    parameters: dict[str, Any] = {"timeout_min": cluster.time_limit_min or _FOREVER_MIN}
    if "CUDA_VISIBLE_DEVICES" in os.environ:  # Submitit would name the first GPUs, whatever the user chose.
        visible = [int(item) for item in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if item.strip().isdecimal()]
        return parameters | {"gpus_per_node": min(cluster.gpus_per_node, len(visible)), "visible_gpus": visible}
    return parameters | {"gpus_per_node": cluster.gpus_per_node}


@contextlib.contextmanager
def one_at_a_time(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a run or sweep: of two launchers the second waits and finds it submitted, or is refused (SubmitError)."""
    contents.require_no_links(directory)
    with contextlib.ExitStack() as stack:
        try:
            opened = files.descriptor(directory / "submission.lock", os.O_WRONLY | os.O_CREAT)
            lock = stack.enter_context(os.fdopen(opened, "w"))
            with interrupts.let_through():
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SubmitError(f"another launch starts runs of {directory.name} already") from None
        except OSError as error:
            raise SubmitError(f"{directory} cannot be written: {error.strerror or error}") from None
        yield


def settle(directory: Path) -> None:
    """Make a run at home where it lies; the caller holds its lock. SubmitError where its job could not start there."""
    working_folder(directory)
    if home.original(directory) is not None and keeper.is_renewed(directory):
        text = f"{directory} looks like a copy of {home.original(directory)}, but its heartbeat is renewed"
        raise SubmitError(f"{text}: it is the run itself, seen from here under another path; cancel it first, or wait")
    try:
        home.settle(directory)
    except OSError as error:
        raise SubmitError(f"the run directory {directory} cannot be written: {error.strerror or error}") from None


def working_folder(directory: Path, words: Sequence[str] = ()) -> Path:
    """The folder that the run's job starts in, wherever the command was typed; SubmitError where it is gone."""
    where = home.working_folder(directory)
    if where.is_dir():
        return where
    name = run_names.name_of(directory, Path.cwd())
    load = [f"save.load={name}"] if checkpoints.whole_checkpoints(directory) else []
    way = shlex.join(["launch", "run", "--from", name, *load, *words])
    text = f"the run's working folder {where} does not exist, and its job starts there: make the folder again, or"
    raise SubmitError(f"{text} go on in this one with another run of it: `{way}`")


def controller_python() -> str:
    """The command that starts Python in the controller; a user who has set the variable keeps it."""
    without = "" if os.environ.get(SAFE_PATH) else f"env -u {SAFE_PATH} "
    return f"{without}{shlex.quote(sys.executable)} -P"


@contextlib.contextmanager
def safe_path_for_controller() -> Iterator[None]:
    """Give the variable to processes that are started meanwhile."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before
