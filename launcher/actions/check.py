"""Judge a run without starting it, as ``launch check`` and ``launcher.check`` do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.actions.importing import Foreign, read, variables_of
from launcher.actions.requests import JudgeRequest, compose_run, judge_run, memory_engine, own_measurements
from launcher.actions.trust_gate import careful_validator, python_of, require_for_trace, require_trust
from launcher.actions.waiting import checking
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.base.terminal import say
from launcher.preflight.assess_here import Judging
from launcher.views.check import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest(JudgeRequest):
    """One run to judge."""

    deepspeed: Path | None = None  # Take the settings of this ds_config.json.
    megatron_args: Path | None = None  # Take the settings of this argument list of Megatron-LM.
    variables: tuple[str, ...] = ()  # Words ``NAME=VALUE`` for the variables that the argument list is a script of.


def files_of(request: CheckRequest) -> list[Foreign]:
    """The other programs' files that a run takes settings of, their keys counted; raises ConfigErrors for a bad one."""
    variables = variables_of(request.variables)
    found = []
    if request.deepspeed is not None:
        found.append(_read_file("deepspeed", request.deepspeed, {}))
    if request.megatron_args is not None:
        found.append(_read_file("megatron", request.megatron_args, variables))
    if variables and request.megatron_args is None:
        rule = "it gives the variables of a script, and there is none"
        raise ConfigErrors([ConfigError("--set", " ".join(request.variables), rule, ["--megatron-args train.sh"])])
    return found


def _read_file(kind: str, path: Path, variables: Mapping[str, str]) -> Foreign:
    foreign = Foreign(kind=kind, path=path, imported=read(kind, path, variables))
    say(f"launch: {path}: {foreign.counted()}; `launch import {kind} {path}` names them")
    return foreign


def check_run(request: CheckRequest, foreign: Sequence[Foreign]) -> Check:
    """Judge one run with the settings of foreign files; words that make no run are an answer, too."""
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
