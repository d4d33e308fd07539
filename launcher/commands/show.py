"""The translated job: argv, environment, generated files and sbatch text, byte for byte what `run` starts.

With the name of a group in place of overrides (`launch show parallel`): its keys, their meaning and defaults.
Exit status: 0, 2 the configuration is wrong, 3 it does not fit (the job is printed all the same).
"""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
from typing import Any

from launcher.commands._common import add_overrides, asked, assessed, folder, print_json, say, width
from launcher.config.catalog import Catalog
from launcher.errors import DoesNotFit
from launcher.job.job import RUN, Job
from launcher.preflight.plan import Plan, plan
from launcher.preflight.report import world_as_json
from launcher.rundir.record import directory_of
from launcher.submission.submit import sbatch_text


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
    assessment = assessed(asked(options))
    planned = plan(assessment, python=sys.executable)
    spec = assessment.spec
    named = spec.run.name is not None or spec.run.directory is not None
    directory = str(directory_of(planned, folder=folder())) if named else RUN
    job = planned.job.at(directory)
    sbatch = sbatch_text(directory.rpartition("/")[2], directory, spec.cluster)
    if options.json:
        print_json(_document(planned, job, sbatch))
    else:
        print(_text(job, sbatch))
    if assessment.verdict.name == "does_not_fit":
        say("launch: this run does not fit; `launch check` says why")
        return DoesNotFit.exit_status
    return 0


def _document(planned: Plan, job: Job, sbatch: str | None) -> dict[str, Any]:
    return {
        "schema": 1,
        "world": world_as_json(planned.spec),
        "argv": list(job.argv),
        "worker_argv": list(job.worker_argv),
        "environment": dict(job.environment),
        "files": dict(job.files),
        "sbatch": sbatch,
    }


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
    return base.read_text().rstrip("\n") if base.is_file() else ""
