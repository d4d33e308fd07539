"""A run's request to Slurm as submitit's parameters: one task per node, which starts torchrun, and what the user set.

The job's shell lines close two gaps: submitit puts the pickled task in place only after it has read the job's id, so
the job copies it in case the launcher was killed before that; and the script itself requeues a job whose step could not
start.
"""

import shlex
import sys
from collections.abc import Sequence
from typing import Any

from launcher.job import sbatch
from launcher.slurm.states import NO_STEP
from launcher.spec import ClusterSpec

TASK = "task.pkl"  # The pickled callable, written before the submission.


def parameters(
    name: str, folder: str, directory: str, cluster: ClusterSpec, *, wait_for: Sequence[str] = ()
) -> dict[str, Any]:
    """Submitit's Slurm parameters of one run, or of an array.

    ``folder`` is submitit's and the job's comment, by which a job is found whose launcher ended before it recorded the
    id; ``directory`` is the run's or sweep's, which a container must see; the jobs in ``wait_for`` must end first.
    """
    optional = {
        "cpus_per_task": cluster.cpus_per_node,
        "exclusive": cluster.exclusive or None,
        cluster.memory_request: cluster.memory,
        **_gpus(cluster),
    }
    return {
        "job_name": name,
        "comment": folder,
        "nodes": cluster.nodes,
        "ntasks_per_node": 1,
        "time": cluster.time_limit_min,  # None omits the line; submitit's default would be five minutes.
        "wckey": None,  # Submitit's default is refused on clusters that check workload keys.
        "signal_delay_s": cluster.save_margin_s,
        "setup": [*setup(cluster), *_copy_task(folder)],
        "teardown": _requeue(cluster),
        "srun_args": _srun(directory, cluster),
        "additional_parameters": {**_additional(cluster), **_dependency(cluster, wait_for)},
        **{key: value for key, value in optional.items() if value is not None},
    }


def escape_percent(text: str, folder: str) -> str:
    """The batch script with ``%`` in the folder's own name doubled in names of log files (sbatch(1))."""
    return text.replace(f"{folder}/%", f"{folder.replace('%', '%%')}/%") if "%" in folder else text


def python(directory: str, cluster: ClusterSpec) -> str:
    """The command that starts Python in the script, without the working folder on its path; the container's own."""
    interpreter = cluster.python or (sys.executable if cluster.container == "none" else "python3")
    if cluster.container != "apptainer":
        return f"{shlex.quote(interpreter)} -P"
    binds = ",".join([directory, *cluster.container_mounts])
    return shlex.join(["apptainer", "exec", "--nv", f"--bind={binds}", str(cluster.container_image), interpreter, "-P"])


def setup(cluster: ClusterSpec) -> list[str]:
    """The user's lines before the job, modules first."""
    modules = [f"module load {shlex.join(cluster.modules)}"] if cluster.modules else []
    return [*modules, *cluster.setup]


def _gpus(cluster: ClusterSpec) -> dict[str, Any]:
    """The GPU request: ``--gpus-per-node``, since Slurm from 24.11 on refuses per-task forms with select/linear."""
    typed = f"{cluster.gpu_type}:{cluster.gpus_per_node}" if cluster.gpu_type else cluster.gpus_per_node
    if cluster.gpu_request == "none":
        return {}
    return {"gpus_per_node": typed} if cluster.gpu_request == "gpus_per_node" else {"gres": f"gpu:{typed}"}


def _copy_task(folder: str) -> list[str]:
    """Shell lines that copy the job's pickle, which submitit moves into place only once it has read the job's id."""
    job = "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
    source = f"{shlex.quote(folder)}/${{SLURM_ARRAY_TASK_ID:-}}{TASK}"
    return [
        f"job={shlex.quote(folder)}/{job}",
        f'cp --no-clobber {source} "$job"_submitted.pkl',
        'said=$(wc -c < "$job"_0_log.err)',
    ]


def _requeue(cluster: ClusterSpec) -> list[str]:
    """Shell lines that requeue a job whose step could not start, as seen with expired credentials or a restart."""
    return [
        "status=$?",
        f"if [ $status != 0 ] && [ ${{SLURM_RESTART_COUNT:-0}} -lt {cluster.requeues} ] &&",
        f"""  tail -c +$((said + 1)) "$job"_0_log.err | grep -qE '{NO_STEP}'""",
        "then scontrol requeue $SLURM_JOB_ID; fi",
        "exit $status",
    ]


def _srun(directory: str, cluster: ClusterSpec) -> list[str]:
    """Arguments of ``srun``, which since Slurm 22.05 does not inherit ``--cpus-per-task`` from sbatch."""
    arguments = ["--kill-on-bad-exit=1"]
    if cluster.cpus_per_node is not None:
        arguments.append(f"--cpus-per-task={cluster.cpus_per_node}")
    if cluster.container == "pyxis":
        mounts = ",".join([f"{directory}:{directory}", *cluster.container_mounts])
        arguments += [f"--container-image={cluster.container_image}", f"--container-mounts={mounts}"]
    return arguments


def _dependency(cluster: ClusterSpec, wait_for: Sequence[str]) -> dict[str, str]:
    own = [] if cluster.dependency is None else [cluster.dependency]
    return {"dependency": ",".join([*own, f"afterany:{':'.join(wait_for)}"])} if wait_for else {}


def _additional(cluster: ClusterSpec) -> dict[str, Any]:
    wanted: dict[str, Any] = {"requeue" if cluster.requeues else "no-requeue": True}
    wanted |= {key: value for key in sbatch.COPIED if (value := getattr(cluster, key)) is not None}
    wanted |= sbatch.mail(cluster.mail) or {} if cluster.mail is not None else {}
    return wanted | {key: value for key, value in cluster.extra.items() if value is not None}
