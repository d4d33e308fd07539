"""Starts a recorded run on this machine or queues it on Slurm, exactly once, whatever fails.

A file lock serializes launchers of the same run, and a job whose id was never recorded is found again. On this machine
submitit starts a controller, which starts our task, both without the working folder on ``sys.path``: the controller,
whose command line cannot be changed, through an environment variable, and the task through ``-P``.
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

_FOREVER_MIN = 60 * 24 * 365  # Submitit ends a local job after its time limit, which is two minutes by default.


def submit(directory: Path, spec: RunSpec) -> str:
    """Start or queue a new recorded run and return its job id (on this machine a process id).

    A run that the cluster refuses leaves nothing behind, so that the corrected run can have its name.
    Raises SubmitError: Slurm is missing, does not answer or refuses. Raises ConfigErrors: Slurm has no such partition,
    account or node.
    """
    with one_at_a_time(directory):
        try:
            return _submit(directory, spec.cluster)
        except (ConfigErrors, Refused):
            forget(directory)  # The user has to change the words, which gives another plan.
            raise
        except SubmitError as error:
            _note_failure(directory, str(error))
            raise


def forget(directory: Path) -> None:
    """Remove a new recorded run, unless it was started or may have been."""
    if not (directory / state.SUBMISSION).exists() and not status.has_started(directory):
        shutil.rmtree(directory, ignore_errors=True)


def _note_failure(directory: Path, reason: str) -> None:
    if (directory / state.SUBMISSION).exists() or status.has_started(directory):
        return
    with contextlib.suppress(OSError):
        files.write_atomically(directory / state.NOT_SUBMITTED, {"reason": reason})


def resubmit(directory: Path, spec: RunSpec, *, before: Callable[[], None] = lambda: None) -> str:
    """Start or queue a run that has ended or was never submitted; of two concurrent launchers only one does.

    ``before`` is called once it is known that nobody else submits or runs it. Errors are those of :func:`submit`.
    """
    with one_at_a_time(directory):
        now = status.read(directory)
        if now.state in ("queued", "running", "requeued"):
            why = f" ({now.reason})" if now.reason else ""
            raise SubmitError(f"{now.id} is {now.state}: cancel it first, or wait{why}")
        if now.state == "unreadable":
            raise SubmitError(f"{now.id} cannot continue: {now.reason}")
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
    """Queue recorded runs of a sweep on Slurm, one array for each set of resources; returns the arrays' job ids.

    At most ``parallelism`` jobs of the sweep run at once, including the jobs ``live``; None leaves it to Slurm. If
    those leave no room, the new jobs wait for their end. Errors are those of :func:`submit`.
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
        # Reap the process, so that a long-lived program has no zombie and no warning about an unawaited process.
        threading.Thread(target=job.wait, daemon=True).start()
        process, job_id = Process.of(int(job.job_id)), str(job.job_id)
        submission = {"job_id": job_id, "kind": "local", "process": process.as_dict()}
        try:
            files.write_atomically(directory / state.SUBMISSION, submission)
            events.add(directory, "queued", "started on this machine", step=None, job_id=job_id)
            keeper.begin_heartbeat(directory, process)
        except OSError:  # A job without a record must not keep running.
            process.send(signal.SIGKILL)
            (directory / state.SUBMISSION).unlink(missing_ok=True)
            raise
        interrupts.note_begun(run_names.name_of(directory, Path.cwd()))
    return job_id


def _local_parameters(cluster: ClusterSpec) -> dict[str, Any]:
    parameters: dict[str, Any] = {"timeout_min": cluster.time_limit_min or _FOREVER_MIN}
    if "CUDA_VISIBLE_DEVICES" in os.environ:  # Submitit would use the first GPUs, whatever the user chose.
        visible = [int(item) for item in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if item.strip().isdecimal()]
        return parameters | {"gpus_per_node": min(cluster.gpus_per_node, len(visible)), "visible_gpus": visible}
    return parameters | {"gpus_per_node": cluster.gpus_per_node}


@contextlib.contextmanager
def one_at_a_time(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a run or sweep: a second launcher waits and finds it submitted. Raises SubmitError without ``wait``."""
    contents.require_no_links(directory)
    with contextlib.ExitStack() as stack:
        try:
            opened = files.descriptor(directory / "submission.lock", os.O_WRONLY | os.O_CREAT)
            lock = stack.enter_context(os.fdopen(opened, "w"))
            with interrupts.let_through():
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SubmitError(f"another launch command is already starting runs of {directory.name}") from None
        except OSError as error:
            raise SubmitError(f"{directory} cannot be written: {error.strerror or error}") from None
        yield


def settle(directory: Path) -> None:
    """Adopt a run at its present path; the caller holds its lock. Raises SubmitError if it cannot start there."""
    working_folder(directory)
    if home.original(directory) is not None and keeper.is_renewed(directory):
        text = f"{directory} looks like a copy of {home.original(directory)}, but its heartbeat is still renewed"
        raise SubmitError(f"{text}: it is the run itself under another path; cancel it first, or wait")
    try:
        home.settle(directory)
    except OSError as error:
        raise SubmitError(f"the run directory {directory} cannot be written: {error.strerror or error}") from None


def working_folder(directory: Path, words: Sequence[str] = ()) -> Path:
    """The folder in which the run's job starts, wherever the command is typed. Raises SubmitError if it is gone."""
    where = home.working_folder(directory)
    if where.is_dir():
        return where
    name = run_names.name_of(directory, Path.cwd())
    load = [f"save.load={name}"] if checkpoints.whole_checkpoints(directory) else []
    way = shlex.join(["launch", "run", "--from", name, *load, *words])
    text = f"the run's working folder {where}, in which its job starts, does not exist: create it again, or"
    raise SubmitError(f"{text} continue in this folder with a new run: `{way}`")


def controller_python() -> str:
    """The command with which the controller starts Python; keeps the variable if the user has set it."""
    without = "" if os.environ.get(SAFE_PATH) else f"env -u {SAFE_PATH} "
    return f"{without}{shlex.quote(sys.executable)} -P"


@contextlib.contextmanager
def safe_path_for_controller() -> Iterator[None]:
    """Set the variable for processes started within the block."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = before or "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before
