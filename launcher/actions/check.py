"""Check a run without starting it, or translate it into the job that would start: ``launch check``, ``launch show``."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.actions.importing import ImportedRun, read, variables_of
from launcher.actions.requests import JudgeRequest, compose_run, folder, judge_run, memory_engine, own_measurements
from launcher.actions.trust_gate import careful_validator, python_of, require_for_trace, require_trust
from launcher.actions.waiting import checking
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.terminal import say
from launcher.config.request import CommandLine
from launcher.job import RUN, Job
from launcher.preflight.assess import world_as_json
from launcher.preflight.assess_here import Judging
from launcher.preflight.plan import Plan, plan
from launcher.views.check import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest(JudgeRequest):
    """One run to check."""

    deepspeed: Path | None = None  # Take the settings of this ds_config.json.
    megatron_args: Path | None = None  # Take the settings of this Megatron-LM argument list.
    variables: tuple[str, ...] = ()  # ``NAME=VALUE`` for the variables of the script that holds the argument list.


def files_of(request: CheckRequest) -> list[ImportedRun]:
    """The other programs' files that a run takes settings from, with their keys counted; ConfigErrors for a bad one."""
    variables = variables_of(request.variables)
    found = []
    if request.deepspeed is not None:
        found.append(_read_file("deepspeed", request.deepspeed, {}))
    if request.megatron_args is not None:
        found.append(_read_file("megatron", request.megatron_args, variables))
    if variables and request.megatron_args is None:
        rule = "it sets variables of a script, and no script is given"
        raise ConfigErrors([ConfigError("--set", " ".join(request.variables), rule, ["--megatron-args train.sh"])])
    return found


def _read_file(kind: str, path: Path, variables: Mapping[str, str]) -> ImportedRun:
    foreign = ImportedRun(kind=kind, path=path, imported=read(kind, path, variables))
    say(f"launch: {path}: {foreign.counted()}; `launch import {kind} {path}` names them")
    return foreign


def check_run(request: CheckRequest, foreign: Sequence[ImportedRun]) -> Check:
    """Check one run with the settings of foreign files; invalid words are answered with their errors."""
    typed = request.typed
    sources = [file.source(typed) for file in foreign]
    refused = [error for file in foreign for error in file.imported.errors]
    if refused:
        return Check(assessment=None, errors=tuple(refused), warnings=())
    line = request.command_line(text for file in foreign for text in file.words(typed))
    if request.trust:
        require_trust(line, trusted=True, imported=sources)
    own = own_measurements(wanted=request.measured, anchor=request.anchor)
    found = compose_run(line, own)
    partial = request.partial or (found.spec is not None and found.spec.run.partial)
    remarks = tuple(remark for file in foreign for remark in file.remarks(typed, partial=partial))
    left_out = () if partial else (error for file in foreign for error in file.refusals(typed))
    found = replace(found, errors=(*left_out, *found.errors))
    if found.spec is None:
        return Check(assessment=None, errors=found.errors, warnings=remarks)
    if request.engine == "trace":
        require_for_trace(line, sources, found.spec)
    with checking(careful_validator(line, sources, typed) if request.native else None) as native:
        judging = Judging(
            refined=memory_engine(request.engine), native=native, python=python_of(line, sources, typed), measured=own
        )
        return Check.of(judge_run(found, judging), warnings=remarks)


_NAME = "{name}"  # Placeholder for the last part of the run directory, which is the job's name.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A translated job; ``print`` shows what ``launch show`` prints."""

    plan: Plan  # The checked run.
    job: Job  # Its job, with the run directory if one is named, else with ``{run}`` in its place.
    # The sbatch script, with ``{name}`` for the directory's last part; None for a local run.
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
        """The variables that are set for the job."""
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
    """Translate a run, even one that does not fit; raises ConfigErrors if the configuration is wrong."""
    from launcher.rundir.record import directory_of  # Late, because a check needs neither, nor what they import.
    from launcher.submission.slurm_jobs import sbatch_text

    planned = plan(judge_run(compose_run(line, own_measurements(wanted=True)), Judging()), python=sys.executable)
    spec = planned.spec
    if spec.run.name is not None or spec.run.directory is not None:
        directory = str(directory_of(planned, folder=folder()))
        sbatch = sbatch_text(directory.rpartition("/")[2], directory, spec.cluster)
        return Shown(plan=planned, job=planned.job.at(directory), sbatch=sbatch)
    # An absolute path, like a run directory: submitit would prefix any other with the working folder.
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
