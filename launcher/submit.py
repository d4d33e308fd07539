"""The only module that imports submitit: it starts a recorded run here or queues it on Slurm."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher import node, state, torchrun
from launcher.errors import SubmitError
from launcher.spec import ClusterSpec, RunSpec

_ARRAY_SIZE = 1000
"""Jobs of one array: Slurm's MaxArraySize is 1001 unless the site has set it, and indices lie below it."""

_FOREVER_MIN = 60 * 24 * 365
"""Submitit ends a local job after its time limit, two minutes unless it is given one."""


class NodeTask:
    """What submitit pickles: importable, with no state; all the job needs is in the run directory."""

    def __call__(self, directory: str) -> None:
        """Run this node's part of the job."""
        import submitit

        environment = submitit.JobEnvironment()
        if environment.cluster == "local":
            node.run(Path(directory))
            return
        job_id, restarts = environment.raw_job_id, os.environ.get("SLURM_RESTART_COUNT", "0")
        first = environment.node == 0
        facts = {
            torchrun.HOST: environment.hostnames[0],
            torchrun.PORT: str(_port(job_id)),
            torchrun.IS_HOST: "1" if first else "0",
            torchrun.RENDEZVOUS: f"{job_id}_{restarts}",
        }
        node.run(Path(directory), facts=facts, first=first)


def _port(job_id: str) -> int:
    """A port for the rendezvous below Linux's ephemeral range (32768), the same on every node of the job."""
    return 20000 + int("".join(filter(str.isdigit, job_id)) or 0) % 10000


def submit(directory: Path, spec: RunSpec) -> str:
    """Start or queue a recorded run and return its job id (on this machine a process id).

    Raises:
        SubmitError: Slurm is missing or refuses the job.
    """
    import submitit

    folder = directory / "logs" / "submitit"
    with _refusals(directory):
        if spec.cluster.kind == "local":
            executor: Any = submitit.LocalExecutor(folder=folder)
            executor.update_parameters(**_local_parameters(spec.cluster))
        else:
            executor = submitit.SlurmExecutor(folder=folder)
            executor.update_parameters(**slurm_parameters(directory.name, spec.cluster))
        with _shielded():
            job_id = str(executor.submit(NodeTask(), str(directory)).job_id)
        state.write_atomically(directory / "submission.json", {"job_id": job_id, "kind": spec.cluster.kind})
    return job_id


@contextlib.contextmanager
def _refusals(directory: Path) -> Iterator[None]:
    """Turn what submitit raises into an error that says where the run is recorded."""
    import submitit

    try:
        yield
    except OSError as error:
        raise SubmitError(f"the run directory {directory} cannot be written: {error.strerror or error}") from None
    except (RuntimeError, submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
        text = " ".join(str(error).split())
        raise SubmitError(f"{text}; the run is recorded in {directory}") from None


def submit_all(runs: Sequence[tuple[Path, RunSpec]], parallelism: int | None) -> list[str]:
    """Queue recorded runs on Slurm as one array for each shape of resources, and return the arrays' job ids.

    Args:
        runs: Run directories with their specifications.
        parallelism: At most so many of an array run at once; None leaves it to Slurm.

    Raises:
        SubmitError: Slurm is missing or refuses a job.
    """
    shapes: dict[str, list[Path]] = {}
    for directory, spec in runs:
        shapes.setdefault(repr(slurm_parameters(directory.parent.name, spec.cluster)), []).append(directory)
    clusters = {directory: spec.cluster for directory, spec in runs}
    arrays = [chunk for alike in shapes.values() for chunk in itertools.batched(alike, _ARRAY_SIZE)]
    return [_submit_array(chunk, clusters[chunk[0]], parallelism) for chunk in arrays]


def _submit_array(runs: Sequence[Path], cluster: ClusterSpec, parallelism: int | None) -> str:
    import submitit

    sweep = runs[0].parent
    executor = submitit.SlurmExecutor(folder=sweep / "submitit")
    parameters = slurm_parameters(sweep.name, cluster)
    executor.update_parameters(**parameters, array_parallelism=parallelism or len(runs))
    with _refusals(sweep), _shielded():
        jobs = executor.map_array(NodeTask(), [str(run) for run in runs])
        for run, job in zip(runs, jobs, strict=True):
            state.write_atomically(run / "submission.json", {"job_id": str(job.job_id), "kind": "slurm"})
    return str(jobs[0].job_id).partition("_")[0]


def _local_parameters(cluster: ClusterSpec) -> dict[str, Any]:
    parameters: dict[str, Any] = {"timeout_min": cluster.time_limit_min or _FOREVER_MIN}
    if "CUDA_VISIBLE_DEVICES" in os.environ:  # Submitit would name the first GPUs, whatever the user chose.
        visible = [int(item) for item in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if item.strip().isdigit()]
        return parameters | {"gpus_per_node": min(cluster.gpus_per_node, len(visible)), "visible_gpus": visible}
    return parameters | {"gpus_per_node": cluster.gpus_per_node}


def slurm_parameters(name: str, cluster: ClusterSpec) -> dict[str, Any]:
    """Submitit's Slurm parameters: one task a node, torchrun below it, and only what the user has set."""
    optional = {
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "constraint": cluster.constraint,
        "cpus_per_task": cluster.cpus_per_node,
        "time": cluster.time_limit_min,
        "exclusive": cluster.exclusive or None,
        "setup": list(cluster.setup) or None,
    }
    additional = dict(cluster.extra)
    if cluster.reservation is not None:
        additional["reservation"] = cluster.reservation
    gpus = "gpus_per_node" if cluster.gpu_request == "gpus_per_node" else "gres"
    return {
        "job_name": name,
        "nodes": cluster.nodes,
        "ntasks_per_node": 1,
        gpus: cluster.gpus_per_node if gpus == "gpus_per_node" else f"gpu:{cluster.gpus_per_node}",
        "additional_parameters": additional,
        **{key: value for key, value in optional.items() if value is not None},
    }


def sbatch_text(name: str, directory: str, cluster: ClusterSpec) -> str | None:
    """The script that Slurm would get, made by submitit's own function; None for a local run."""
    if cluster.kind != "slurm":
        return None
    from submitit.slurm.slurm import _make_sbatch_string

    folder = f"{directory}/logs/submitit"
    command = f"{sys.executable} -u -m submitit.core._submit {folder}"
    text: str = _make_sbatch_string(command=command, folder=folder, **slurm_parameters(name, cluster))
    return text


@contextlib.contextmanager
def _shielded() -> Iterator[None]:
    """Start processes that ignore Ctrl-C and a closed terminal: the launcher alone decides what these mean."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
