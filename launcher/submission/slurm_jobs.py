"""Submits recorded runs to Slurm: scripts by submitit's own function, one job per run, job arrays for a sweep.

Before sbatch is called, ``submission.json`` records the intent, with the job's comment (submitit's folder) and no id:
if the launcher is killed before it records sbatch's answer, the job is found by this comment and adopted. Runs of a
sweep with equal resources form one array.

Slurm can limit the running jobs of one array (``--array=0-7%2``), but not of several. So arrays are assigned to lanes
that run in parallel: the widths of the lanes add up to the limit, and the arrays of one lane run one after the other
(``--dependency=afterany``). Lanes with more jobs are wider.
"""

import contextlib
import itertools
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.errors import SubmitError
from launcher.base.frozen import dataclass
from launcher.job import events
from launcher.rundir import attempts, run_names, state, status
from launcher.slurm import jobs, precheck, script
from launcher.spec import ClusterSpec, RunSpec
from launcher.submission import interrupts
from launcher.submission.node import NodeTask

_ARRAY_SIZE = 1000
"""Most jobs in one array: Slurm's MaxArraySize is 1001 by default, and indices must be below it."""

_FOREVER_MIN = 60 * 24 * 365  # Submitit ends a task after its time limit; a run without a limit gets a year.
_PATIENCE_S = 20  # Seconds that a submission waits for a controller that is being restarted.


class NoJob(SubmitError):
    """Raised if Slurm has answered and created no job."""


def submit_run(directory: Path, cluster: ClusterSpec) -> str:
    """Submit one run and return its job id; a job whose id was never recorded is found by its comment instead."""
    found = status.adopted(directory)
    if found is not None:
        return found
    forget_tasks(directory)
    [job_id] = _hand_over(directory / "logs" / "submitit", directory, [directory], cluster)
    return job_id


def _hand_over(
    folder: Path,
    place: Path,
    runs: Sequence[Path],
    cluster: ClusterSpec,
    at_once: int | None = None,
    wait_for: Sequence[str] = (),
) -> list[str]:
    """Queue one run or an array, and record its job ids.

    ``folder`` is submitit's and the job's comment, ``place`` the directory of the run or sweep, mounted in containers.
    """
    parameters = script.parameters(place.name, str(folder), str(place), cluster, wait_for=wait_for)
    with interrupts.let_through():
        precheck.check(cluster, _script(parameters, cluster, folder, place), patience_s=_PATIENCE_S)
        precheck.check_folder(place)
    limit = {} if at_once is None else {"array_parallelism": at_once}
    # Recorded before sbatch is called, so that a job whose id is never recorded is found by this comment.
    intent = {"kind": "slurm", "job_id": None, "comment": str(folder)}
    with interrupts.shielded():
        for index, run in enumerate(runs):
            attempts.forget(run)
            files.write_atomically(run / state.SUBMISSION, intent | ({"index": index} if len(runs) > 1 else {}))
        try:
            ids = _submit(folder, place, {**parameters, **limit}, cluster, [str(run) for run in runs])
        except NoJob:
            for run in runs:
                (run / state.SUBMISSION).unlink()
            raise
        for run, job_id in zip(runs, ids, strict=True):
            files.write_atomically(run / state.SUBMISSION, {**intent, "job_id": job_id})
            events.add(run, "queued", f"submitted as job {job_id}", step=None, job_id=job_id)
        interrupts.note_begun(run_names.name_of(place, Path.cwd()))
    return ids


def forget_tasks(directory: Path) -> None:
    """Remove pickled tasks of earlier submissions, which a new job could load. Raises SubmitError for a link."""
    folder = files.real(directory) / "logs" / "submitit"
    if files.real(folder) != folder:
        rule = "a job's task is pickled, and none is read from outside the run's folder"
        raise SubmitError(f"{directory}/logs/submitit leads to {files.real(folder)} by a link: {rule}; remove the link")
    for task in folder.glob("*.pkl"):
        task.unlink()


def submit_arrays(recorded: Sequence[tuple[Path, RunSpec]], parallelism: int | None, live: Sequence[str]) -> list[str]:
    """Queue recorded runs within a limit, one array for each set of resources; returns the arrays' job ids."""
    shapes: dict[str, list[Path]] = {}
    for directory, spec in recorded:
        shapes.setdefault(repr(script.parameters("", "", "", spec.cluster)), []).append(directory)
    clusters = {directory: spec.cluster for directory, spec in recorded}
    arrays = [chunk for alike in shapes.values() for chunk in itertools.batched(alike, _ARRAY_SIZE)]
    room = None if parallelism is None else parallelism - len(live)
    before = list(dict.fromkeys(job.partition("_")[0] for job in live)) if room is not None and room < 1 else []
    jobs_of: list[str] = []
    in_turn = turns(list(map(len, arrays)), parallelism if before else room)
    for chunk, turn in zip(arrays, in_turn, strict=True):
        wait_for = before if turn.after is None else [jobs_of[turn.after]]
        jobs_of.append(_submit_array(chunk, clusters[chunk[0]], turn.at_once, wait_for))
    return jobs_of


def _submit_array(runs: Sequence[Path], cluster: ClusterSpec, at_once: int, wait_for: Sequence[str]) -> str:
    sweep = runs[0].parent
    try:
        (sweep / "submitit").mkdir(exist_ok=True)
        number = itertools.count(len(list((sweep / "submitit").iterdir())))
        folder = next(path for each in number if not (path := sweep / "submitit" / str(each)).exists())
        ids = _hand_over(folder, sweep, runs, cluster, at_once, wait_for)
    except OSError as error:
        raise SubmitError(f"the sweep's folder {sweep} cannot be written: {error.strerror or error}") from None
    return ids[0].partition("_")[0]


def _submit(
    folder: Path, seen: Path, parameters: dict[str, Any], cluster: ClusterSpec, directories: Sequence[str]
) -> list[str]:
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
            base = jobs.jobs_by_comment().get(parameters["comment"]) if jobs.is_away(text) else None
            if base is None:
                kind = SubmitError if jobs.is_away(text) else NoJob
                raise kind(f"{text}; the run is recorded in {directories[0]}") from None
            return [f"{base.partition('_')[0]}_{n}" for n in range(len(directories))] if many else [base]


def sbatch_text(name: str, directory: str, cluster: ClusterSpec) -> str | None:
    """The script that Slurm gets for a single run; None for a local run."""
    if cluster.kind != "slurm":
        return None
    folder = f"{directory}/logs/submitit"
    return _script(script.parameters(name, folder, directory, cluster), cluster, folder, directory)


def array_text(directory: Path, cluster: ClusterSpec, count: int) -> str | None:
    """The script that Slurm gets for the runs of a new sweep with equal resources; None for local runs."""
    if cluster.kind != "slurm":
        return None
    folder = directory / "submitit" / "0"
    parameters = script.parameters(directory.name, str(folder), str(directory), cluster)
    many = {"map_count": count, "array_parallelism": count} if count > 1 else {}
    return _script({**parameters, **many}, cluster, folder, directory)


def _script(parameters: dict[str, Any], cluster: ClusterSpec, folder: Path | str, seen: Path | str) -> str:
    """The sbatch text from submitit's own function, so that the shown text is the submitted one."""
    from submitit.slurm.slurm import _make_sbatch_string

    own = script.python(str(seen), cluster)
    command = f"{own} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    text: str = _make_sbatch_string(command=command, folder=folder, **parameters)
    return script.escape_percent(text, str(folder))


@contextlib.contextmanager
def _without_job_variables() -> Iterator[None]:
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if jobs.leaks(name)}
    try:
        yield
    finally:
        os.environ.update(hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySchedule:
    """The schedule of one array."""

    at_once: int  # How many of its jobs may run at once.
    after: int | None  # The index of the array that must have ended before; None if it waits for none.


def turns(sizes: Sequence[int], limit: int | None) -> list[ArraySchedule]:
    """A turn for each array of so many jobs, of which at most ``limit`` run at once; None leaves it to Slurm."""
    if limit is None or sum(sizes) <= limit:
        return [ArraySchedule(at_once=size, after=None) for size in sizes]
    lanes = _lanes(sizes, min(limit, len(sizes)))
    found: dict[int, ArraySchedule] = {}
    for lane, width in zip(lanes, _widths(lanes, sizes, limit), strict=True):
        for place, array in enumerate(lane):
            after = lane[place - 1] if place else None
            found[array] = ArraySchedule(at_once=min(width, sizes[array]), after=after)
    return [found[array] for array in range(len(sizes))]


def _lanes(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The arrays assigned to lanes, the largest first, each to the lane with the fewest jobs so far."""
    lanes: list[list[int]] = [[] for _ in range(count)]
    for array in sorted(range(len(sizes)), key=lambda array: -sizes[array]):
        min(lanes, key=lambda lane: sum(sizes[other] for other in lane)).append(array)
    return [sorted(lane) for lane in lanes]


def _widths(lanes: Sequence[Sequence[int]], sizes: Sequence[int], limit: int) -> list[int]:
    """The limit divided among lanes: each further slot goes to the lane with the most jobs per slot."""
    widths = [1] * len(lanes)
    jobs = [sum(sizes[array] for array in lane) for lane in lanes]
    widest = [max(sizes[array] for array in lane) for lane in lanes]
    while sum(widths) < limit:
        narrow = [n for n in range(len(lanes)) if widths[n] < widest[n]]
        if not narrow:
            break
        widths[max(narrow, key=lambda n: jobs[n] / widths[n])] += 1
    return widths
