"""``plan(assessment)``: everything decided about a run before anything is started.

The dry run is the run minus its last call.
"""

from dataclasses import replace
from pathlib import Path

from launcher import backends
from launcher.base.errors import raise_any
from launcher.base.frozen import dataclass
from launcher.job import RUN, Job, run_script, torchrun
from launcher.preflight.assess import Assessment
from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A checked run and the job it becomes."""

    spec: RunSpec
    assessment: Assessment
    job: Job


def plan(assessment: Assessment, *, python: str) -> Plan:
    """Translate an assessed run into its job, which ``python`` starts.

    Raises ConfigErrors: The specification breaks rules. A run that does not fit is not an error here: its plan says so.
    """
    raise_any(assessment.errors)
    spec = assessment.spec
    return Plan(spec=spec, assessment=assessment, job=translate(spec, python=python))


def translate(spec: RunSpec, *, python: str) -> Job:
    """The job of a valid specification, including the environment common to all backends."""
    job = backends.of(spec).translate(spec, python)
    if spec.script is not None:
        starter = Path(run_script.__file__)
        argv = torchrun.command(spec, python, (f"{RUN}/{starter.name}",), spec.script_args)
        files = {**job.files, starter.name: starter.read_text()}
        job = replace(job, argv=argv, worker_argv=spec.script_args, files=files)
    # Later ones win: the backend overrides the common defaults, and the user overrides both.
    common = {**_common_environment(spec), **torchrun.environment(job.argv)}
    environment = {**common, **job.environment, **spec.cluster.environment}
    return replace(job, environment=environment, pass_environment=spec.cluster.pass_environment)


def _common_environment(spec: RunSpec) -> dict[str, str]:
    """Environment variables of every job. A user's script finds the run through those that start with ``LAUNCH_``."""
    environment = {
        **torchrun.ENVIRONMENT,
        "LAUNCH_RUN": RUN,
        "LAUNCH_SPEC": f"{RUN}/spec.json",
        "LAUNCH_CHECKPOINTS": f"{RUN}/checkpoints",
        "OMP_NUM_THREADS": "1",  # torchrun would set the same, with a warning.
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",  # The ranks already run in parallel; forked data loaders would warn.
    }
    interface = spec.cluster.interface or ("lo" if spec.cluster.kind == "local" else None)
    if interface is not None:
        environment |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return environment
