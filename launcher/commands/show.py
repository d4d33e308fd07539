"""The translated job: argv, environment, generated files and sbatch text, byte for byte what `run` starts.

With the name of a group in place of overrides (`launch show parallel`): its keys, their meaning and defaults.
Exit status: 0, 2 the configuration is wrong, 3 it does not fit (the job is printed all the same).
"""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from dataclasses import dataclass
from typing import Any

from launcher.base import files
from launcher.base.errors import DoesNotFit
from launcher.commands._common import add_overrides, asked, assessed, folder, print_json, say, width
from launcher.config.catalog import Catalog
from launcher.job.job import RUN, Job
from launcher.preflight.plan import Plan, plan
from launcher.preflight.report import world_as_json
from launcher.rundir.record import directory_of
from launcher.submission.submit import sbatch_text

_NAME = "{name}"
"""Stands for the last part of the run directory, which is the job's name."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_overrides(parser)


def run(options: argparse.Namespace) -> int:
    """Print the job, or the keys of a group."""
    catalog = Catalog(folder=folder())
    if len(options.overrides) == 1 and options.overrides[0] in catalog.groups:
        group = options.overrides[0]
        if options.json:
            keys = {"group": group, "options": list(catalog.groups[group]), "keys": _keys(catalog, group)}
            print_json({"schema": 1, "show": keys})
        else:
            options_of = textwrap.fill(f"{group}= {' '.join(catalog.groups[group])}", width(), subsequent_indent="  ")
            print(f"{options_of}\n\n{_keys(catalog, group)}".rstrip("\n"))
        return 0
    found = shown(options)
    if options.json:
        print_json(found.as_dict())
    else:
        print(found)
    if found.plan.assessment.verdict.name == "does_not_fit":
        say("launch: this run does not fit; `launch check` says why")
        return DoesNotFit.exit_status
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A translated job; ``print`` shows what ``launch show`` prints.

    Attributes:
        plan: The checked run.
        job: Its job at the run directory that was named, else with ``{run}`` in its place.
        sbatch: The text that Slurm would get, with ``{name}`` for the directory's last part; None for a local run.
    """

    plan: Plan
    job: Job
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

    def as_dict(self) -> dict[str, Any]:
        """The document of ``launch show --json`` (docs/contract.md)."""
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


def shown(options: argparse.Namespace) -> Shown:
    """Translate a run, also one that does not fit.

    Raises:
        ConfigErrors: The configuration is wrong.
    """
    planned = plan(assessed(asked(options)), python=sys.executable)
    spec = planned.spec
    named = spec.run.name is not None or spec.run.directory is not None
    if named:
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


def _keys(catalog: Catalog, group: str) -> str:
    """The keys of a group with defaults and meaning, as YAML; a recipe is a file of its own and has none."""
    base = catalog.conf[-1] / group / "_base.yaml"
    return files.read_text(base).rstrip("\n") if base.is_file() else ""
