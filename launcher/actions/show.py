"""Translate a run into what would be started, as ``launch show`` does."""

from __future__ import annotations

import shlex
import sys

from launcher.actions.requests import compose_run, folder, judge_run, own_measurements
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.config.request import CommandLine
from launcher.job.job import RUN, Job
from launcher.preflight.assess import world_as_json
from launcher.preflight.assess_here import Judging
from launcher.preflight.plan import Plan, plan
from launcher.rundir.record import directory_of
from launcher.submission.slurm_jobs import sbatch_text

_NAME = "{name}"  # Stands for the last part of the run directory, which is the job's name.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A translated job; ``print`` shows what ``launch show`` prints."""

    plan: Plan  # The checked run.
    job: Job  # Its job at the run directory that was named, else with ``{run}`` in its place.
    # The text that Slurm would get, with ``{name}`` for the directory's last part; None for a local run.
    sbatch: str | None

    @property
    def argv(self) -> tuple[str, ...]:
        """The command that starts the job on a node."""
        return tuple(self.job.argv)

    @property
    def worker_argv(self) -> tuple[str, ...]:
        """The argument list of the training program."""
        return tuple(self.job.worker_argv)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the job gets."""
        return dict(self.job.environment)

    @property
    def files(self) -> dict[str, str]:
        """The generated files by name."""
        return dict(self.job.files)

    def as_dict(self) -> JsonObject:
        """The document of ``launch show --json`` (docs/contract/documents.md)."""
        return {
            "schema": 1,
            "world": world_as_json(self.plan.spec),
            "argv": list(self.job.argv),
            "worker_argv": list(self.job.worker_argv),
            "environment": dict(self.job.environment),
            "files": dict(self.job.files),
            "sbatch": self.sbatch,
        }

    def __str__(self) -> str:
        return _text(self.job, self.sbatch)


def translate_run(line: CommandLine) -> Shown:
    """Translate a run, also one that does not fit; raises ConfigErrors where the configuration is wrong."""
    planned = plan(judge_run(compose_run(line, own_measurements(wanted=True)), Judging()), python=sys.executable)
    spec = planned.spec
    if spec.run.name is not None or spec.run.directory is not None:
        directory = str(directory_of(planned, folder=folder()))
        sbatch = sbatch_text(directory.rpartition("/")[2], directory, spec.cluster)
        return Shown(plan=planned, job=planned.job.at(directory), sbatch=sbatch)
    # As an absolute path, which a run directory is: submitit would put the working folder before any other.
    sbatch = sbatch_text(_NAME, f"/{RUN}", spec.cluster)
    return Shown(plan=planned, job=planned.job, sbatch=None if sbatch is None else sbatch.replace(f"/{RUN}", RUN))


def _text(job: Job, sbatch: str | None) -> str:
    environment = [f"{name}={shlex.quote(value)} \\" for name, value in sorted(job.environment.items())]
    parts = ["# job, on each node", *environment, shlex.join(job.argv)]
    parts += [f"\n# from the submitting shell: {name}" for name in job.pass_environment]
    for name, text in job.files.items():
        parts += [f"\n# {name}", text.rstrip("\n")]
    if sbatch is not None:
        parts += ["\n# sbatch", sbatch.rstrip("\n")]
    return "\n".join(parts)
