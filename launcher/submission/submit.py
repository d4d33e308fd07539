"""A recorded run started here or queued on Slurm; only this room imports submitit.

A run must be submitted once, whatever fails. A file lock keeps two launchers of one run apart. Before sbatch is called
``submission.json`` notes the intent, with the job's comment (submitit's folder) and no id: a launcher that is killed
between sbatch's answer and the note of it, or that gets no answer, leaves a job that is found by this comment and
adopted. Slurm is asked first (``launcher.slurm.precheck``), so that a refusal names a key of ours. The script is made
by submitit's own function with the parameters that are submitted, so ``show`` prints that text. Of a sweep, runs with
equal resources are one array.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigErrors, Refused, SubmitError
from launcher.base.process import Process
from launcher.job import events
from launcher.rundir import attempts, contents, lease, state, status
from launcher.slurm import client, jobs, precheck, script
from launcher.spec import ClusterSpec, RunSpec
from launcher.submission import interrupts, moving, safe_path
from launcher.submission.node_task import NodeTask
from launcher.submission.turns import turns

_ARRAY_SIZE = 1000
"""Jobs of one array: Slurm's MaxArraySize is 1001 unless the site has set it, and indices lie below it."""

_FOREVER_MIN = 60 * 24 * 365
"""Submitit ends a local job after its time limit, two minutes unless it is given one."""


_PATIENCE_S = 20
"""Seconds that a submission waits for a controller that is being restarted."""


class NoJob(SubmitError):
    """Slurm has answered, and made no job."""


def submit(directory: Path, spec: RunSpec) -> str:
    """Start or queue a new run that was recorded and return its job id (on this machine a process id).

    A run that the cluster would refuse as it is leaves nothing behind, so that the corrected one may have its name.

    Raises:
        SubmitError: Slurm is missing, does not answer or refuses the job.
        ConfigErrors: Slurm has no such partition, account or node.
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
    """Note that no job was made of a new run, unless nobody can tell: then its intent to submit is there."""
    if (directory / state.SUBMISSION).exists() or status.has_started(directory):
        return
    with contextlib.suppress(OSError):
        files.write_atomically(directory / state.NOT_SUBMITTED, {"reason": reason})


def resubmit(directory: Path, spec: RunSpec, *, before: Callable[[], None] = lambda: None) -> str:
    """Start or queue a run again that has ended, or that nobody has submitted; of two launchers one does.

    Args:
        directory: The run directory.
        spec: The run.
        before: Called once it is known that no other launcher submits the run, and that it does not run.

    Raises:
        SubmitError: It waits or runs, or as :func:`submit`.
        ConfigErrors: As :func:`submit`.
    """
    with one_at_a_time(directory):
        now = status.read(directory)
        if now.state in ("queued", "running", "requeued"):
            why = f" ({now.reason})" if now.reason else ""
            raise SubmitError(f"{now.id} is {now.state}: cancel it first, or wait{why}")
        if now.state == "unreadable":
            raise SubmitError(f"{now.id} cannot go on: {now.reason}")
        moving.settle(directory)
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
            return _to_slurm(directory, cluster)
        _forget_tasks(directory)
        return _start_here(directory, cluster)
    except OSError as error:
        raise SubmitError(f"the run directory {directory} cannot be written: {error.strerror or error}") from None


def _forget_tasks(directory: Path) -> None:
    """Remove the pickled tasks of earlier submissions: the new job would take one of its own id for its task.

    Raises:
        SubmitError: Their folder lies elsewhere.
    """
    folder = files.real(directory) / "logs" / "submitit"
    if files.real(folder) != folder:
        rule = "a job's task is pickled, and none is read from outside of the run's folder"
        raise SubmitError(f"{directory}/logs/submitit leads to {files.real(folder)} by a link: {rule}; remove the link")
    for task in folder.glob("*.pkl"):
        task.unlink()


def submit_all(
    recorded: Sequence[tuple[Path, RunSpec]], parallelism: int | None, live: Sequence[str] = ()
) -> list[str]:
    """Queue recorded runs of a sweep on Slurm, one array for each shape of resources; the arrays' job ids.

    Args:
        recorded: Run directories with their specifications.
        parallelism: At most so many of the sweep run at once, whatever their shapes; None leaves it to Slurm.
        live: Job ids of the sweep's runs that wait or run already, which count; where they leave no room, what is
            submitted here waits for their end.

    Raises:
        SubmitError: Slurm is missing, does not answer or refuses a job.
        ConfigErrors: Slurm has no such partition, account or node.
    """
    try:
        return _submit_arrays(recorded, parallelism, live)
    except (ConfigErrors, SubmitError) as error:
        for directory, _ in recorded:
            _note_failure(directory, str(error))
        raise


def _submit_arrays(recorded: Sequence[tuple[Path, RunSpec]], parallelism: int | None, live: Sequence[str]) -> list[str]:
    shapes: dict[str, list[Path]] = {}
    for directory, spec in recorded:
        shapes.setdefault(repr(script.parameters("", "", "", spec.cluster)), []).append(directory)
    clusters = {directory: spec.cluster for directory, spec in recorded}
    arrays = [chunk for alike in shapes.values() for chunk in itertools.batched(alike, _ARRAY_SIZE)]
    room = None if parallelism is None else parallelism - len(live)
    before = list(dict.fromkeys(job.partition("_")[0] for job in live)) if room is not None and room < 1 else []
    jobs_of: list[str] = []
    for chunk, turn in zip(
        arrays, turns([len(chunk) for chunk in arrays], parallelism if before else room), strict=True
    ):
        wait_for = before if turn.after is None else [jobs_of[turn.after]]
        jobs_of.append(_submit_array(chunk, clusters[chunk[0]], turn.at_once, wait_for))
    return jobs_of


def _submit_array(recorded: Sequence[Path], cluster: ClusterSpec, at_once: int, wait_for: Sequence[str]) -> str:
    """One array, begun when the jobs have ended that it waits for.

    Its folder is its comment, by which a launcher that was killed finds it again.
    """
    sweep = recorded[0].parent
    try:
        (sweep / "submitit").mkdir(exist_ok=True)
        number = itertools.count(len(list((sweep / "submitit").iterdir())))
        folder = next(path for each in number if not (path := sweep / "submitit" / str(each)).exists())
        parameters = script.parameters(sweep.name, str(folder), str(sweep), cluster, wait_for=wait_for)
        precheck.check(cluster, _script(parameters, cluster, folder, sweep), patience_s=_PATIENCE_S)
        precheck.check_folder(sweep)
        # Before sbatch is called, so that a job whose id is never noted is found by this comment.
        intent = {"kind": "slurm", "job_id": None, "comment": str(folder)}
        with interrupts.held():
            for index, run in enumerate(recorded):
                attempts.forget(run)
                files.write_atomically(run / state.SUBMISSION, intent | ({"index": index} if len(recorded) > 1 else {}))
        parameters["array_parallelism"] = at_once
        with interrupts.shielded():
            try:
                ids = _submitted(folder, sweep, parameters, cluster, [str(run) for run in recorded])
            except NoJob:
                for run in recorded:
                    (run / state.SUBMISSION).unlink()
                raise
            for run, job_id in zip(recorded, ids, strict=True):
                files.write_atomically(run / state.SUBMISSION, {**intent, "job_id": job_id})
                events.add(run, "queued", f"submitted as job {job_id}", step=None, job_id=job_id)
            interrupts.begun(status.name_of(sweep, Path.cwd()))
    except OSError as error:
        raise SubmitError(f"the sweep's folder {sweep} cannot be written: {error.strerror or error}") from None
    return ids[0].partition("_")[0]


def _start_here(directory: Path, cluster: ClusterSpec) -> str:
    import submitit

    executor = submitit.LocalExecutor(folder=directory / "logs" / "submitit", python=safe_path.python())
    executor.update_parameters(**_local_parameters(cluster))
    interrupts.look()
    with interrupts.shielded(), safe_path.for_controller():
        job = executor.submit(NodeTask(), str(directory))
        # A program that goes on for hours has no zombies, and no warning of a process that nobody waits for.
        threading.Thread(target=job.wait, daemon=True).start()
        process, job_id = Process.of(int(job.job_id)), str(job.job_id)
        submission = {"job_id": job_id, "kind": "local", "process": process.as_dict()}
        try:
            files.write_atomically(directory / state.SUBMISSION, submission)
            events.add(directory, "queued", "started on this machine", step=None, job_id=job_id)
            lease.begin(directory, process)
        except OSError:  # A job that nobody knows of must not go on.
            process.send(signal.SIGKILL)
            (directory / state.SUBMISSION).unlink(missing_ok=True)
            raise
        interrupts.begun(status.name_of(directory, Path.cwd()))
    return job_id


def _to_slurm(directory: Path, cluster: ClusterSpec) -> str:
    """Submit once, whatever happened before: a job whose id was never written down is found by its comment."""
    found = status.adopted(directory)
    if found is not None:
        return found
    _forget_tasks(directory)
    folder = directory / "logs" / "submitit"
    parameters = script.parameters(directory.name, str(folder), str(directory), cluster)
    with interrupts.let_through():
        precheck.check(cluster, _script(parameters, cluster, folder, directory), patience_s=_PATIENCE_S)
        precheck.check_folder(directory)
    intent = {"kind": "slurm", "job_id": None, "comment": str(folder)}
    with interrupts.shielded():
        attempts.forget(directory)
        files.write_atomically(directory / state.SUBMISSION, intent)
        try:
            [job_id] = _submitted(folder, directory, parameters, cluster, [str(directory)])
        except NoJob:
            (directory / state.SUBMISSION).unlink()
            raise
        files.write_atomically(directory / state.SUBMISSION, {**intent, "job_id": job_id})
        events.add(directory, "queued", f"submitted as job {job_id}", step=None, job_id=job_id)
        interrupts.begun(status.name_of(directory, Path.cwd()))
    return job_id


def _submitted(
    folder: Path, seen: Path, parameters: dict[str, Any], cluster: ClusterSpec, directories: Sequence[str]
) -> list[str]:
    """Hand one job or one array to Slurm through submitit; the ids. A container sees the folder ``seen``.

    Raises:
        SubmitError: It was refused after all, or nobody answered and no job with its comment is there.
    """
    import submitit

    with _without_job_variables():
        executor = submitit.SlurmExecutor(folder=folder, python=script.python(str(seen), cluster))
        executor.update_parameters(**parameters)
        folder.mkdir(parents=True, exist_ok=True)
        many = len(directories) > 1
        for number, directory in enumerate(directories):
            task = submitit.helpers.DelayedSubmission(NodeTask(), directory)
            task.set_timeout(cluster.time_limit_min or _FOREVER_MIN, _FOREVER_MIN)
            task.dump(folder / f"{number if many else ''}{script.TASK}")
        try:
            return [str(job.job_id) for job in executor.map_array(NodeTask(), directories)]
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
            text = " ".join(str(error).split())
            base = jobs.commented().get(parameters["comment"]) if client.is_away(text) else None
            if base is None:
                kind = SubmitError if client.is_away(text) else NoJob
                raise kind(f"{text}; the run is recorded in {directories[0]}") from None
            return [f"{base.partition('_')[0]}_{n}" for n in range(len(directories))] if many else [base]


def sbatch_text(name: str, directory: str, cluster: ClusterSpec) -> str | None:
    """The script that Slurm gets for a single run; None for a local run."""
    if cluster.kind != "slurm":
        return None
    folder = f"{directory}/logs/submitit"
    return _script(script.parameters(name, folder, directory, cluster), cluster, folder, directory)


def array_text(directory: Path, cluster: ClusterSpec, count: int) -> str | None:
    """The script that Slurm gets for the runs of a new sweep with equal resources; None for local runs.

    Args:
        directory: The sweep's folder.
        cluster: The profile of its runs.
        count: How many they are.
    """
    if cluster.kind != "slurm":
        return None
    folder = directory / "submitit" / "0"
    parameters = script.parameters(directory.name, str(folder), str(directory), cluster)
    many = {"map_count": count, "array_parallelism": count} if count > 1 else {}
    return _script({**parameters, **many}, cluster, folder, directory)


def _script(parameters: dict[str, Any], cluster: ClusterSpec, folder: Path | str, seen: Path | str) -> str:
    """The sbatch text by submitit's own function, so that the text that is shown is the one that is submitted."""
    from submitit.slurm.slurm import _make_sbatch_string

    own = script.python(str(seen), cluster)
    command = f"{own} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    text: str = _make_sbatch_string(command=command, folder=folder, **parameters)
    return script.escaped(text, str(folder))


def _local_parameters(cluster: ClusterSpec) -> dict[str, Any]:
    parameters: dict[str, Any] = {"timeout_min": cluster.time_limit_min or _FOREVER_MIN}
    if "CUDA_VISIBLE_DEVICES" in os.environ:  # Submitit would name the first GPUs, whatever the user chose.
        visible = [int(item) for item in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if item.strip().isdecimal()]
        return parameters | {"gpus_per_node": min(cluster.gpus_per_node, len(visible)), "visible_gpus": visible}
    return parameters | {"gpus_per_node": cluster.gpus_per_node}


@contextlib.contextmanager
def one_at_a_time(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a run or sweep: of two launchers the second waits and finds it submitted, or is refused.

    Raises:
        SubmitError: Another launcher is at it, or the directory cannot be written, or a file of it lies elsewhere.
    """
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


@contextlib.contextmanager
def _without_job_variables() -> Iterator[None]:
    """Submit as from a login node: a surrounding job's variables would change the new one."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if client.leaks(name)}
    try:
        yield
    finally:
        os.environ.update(hidden)
