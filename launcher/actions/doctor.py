"""Examine this machine and its Slurm, and write a cluster profile from it, for ``launch doctor``."""

import os
import re
from datetime import date
from pathlib import Path

from launcher.actions.requests import JudgeRequest, Output, folder, write_new
from launcher.actions.trust_gate import require_trust
from launcher.base import machine
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.terminal import say
from launcher.config.request import request
from launcher.config.trust import sources as trust
from launcher.data import token_folder
from launcher.job import versions
from launcher.preflight import job_python
from launcher.rundir import provenance
from launcher.slurm import jobs, survey
from launcher.slurm.survey import Survey
from launcher.views import doctor as view

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest(JudgeRequest):
    """Options of ``launch doctor``."""

    wait: float = 60  # Seconds to wait for a node to answer; 0 asks none.
    write: str | None = None  # Write the profile to ``conf/cluster/NAME.yaml``.


def examine(options: DoctorRequest) -> Output:
    """Survey the machine and its Slurm, and write the profile if requested; SubmitError if there is none."""
    document, status = {"machine": _machine(machine.facts()), **_cluster(options)}, 0
    if document["slurm"] is None and jobs.installed():
        status = SubmitError.exit_status
    if options.write is not None:
        document["written"] = str(_write_profile(options.write, document))
    return Output(document={"schema": 1, "doctor": document}, text=view.text(document), exit_status=status)


def _cluster(options: DoctorRequest) -> JsonObject:
    """The answers of Slurm and of one node; ``lacks`` says what is missing and why.

    A node's Python packages are cached, so that later checks of runs with the same profile know them.
    """
    nothing, own = {"slurm": None, "profile": None}, list(job_python.findings(versions.every()))
    if not jobs.installed():
        return {**nothing, "lacks": [*own, "this machine has no Slurm: runs start here (cluster=local)"]}
    line = options.command_line()
    require_trust(line, trusted=options.trust)
    cluster = request(["cluster=slurm", *line.words], catalog=line.catalog).require().cluster
    try:
        found = survey.survey(cluster, folder() / (cluster.shared_folder or ""), wait_s=options.wait)
    except SubmitError as error:
        return {**nothing, "lacks": [*own, str(error)]}
    if found.node is not None:
        job_python.note(cluster, found.node, date.today().isoformat())
        own += job_python.findings(found.node["packages"], f" on {found.node['host']}")
    return {"slurm": _slurm(found), "profile": survey.profile(found, cluster), "lacks": [*own, *survey.lacks(found)]}


def _machine(here: machine.Machine) -> JsonObject:
    software = provenance.versions()
    return {
        "python": software["python"],
        "packages": software["packages"],
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in here.gpus],
        "host_memory_bytes": here.host_memory_bytes,
        "cpus": here.cpus,
        "token_ids": token_folder.cache_use(token_folder.root_here(os.environ, folder())).as_dict(),
    }


def _slurm(found: Survey) -> JsonObject:
    rows = [
        {
            "name": part.name,
            "default": part.default,
            "up": part.up,
            "max_minutes": part.max_minutes,
            "nodes": part.nodes,
            "preempt_mode": part.preempt_mode,
            "kinds": [
                {"nodes": kind.count, "cpus": kind.cpus, "memory_mib": kind.memory_mib, "gpus": dict(kind.gpus)}
                for kind in part.kinds
            ],
        }
        for part in found.partitions
    ]
    return {"version": found.config.get("SLURM_VERSION"), "partitions": rows, "node": found.node}


def _write_profile(name: str, document: JsonObject) -> Path:
    path, profile = folder() / "conf" / "cluster" / f"{name}.yaml", document["profile"]
    if profile is None:
        raise SubmitError(f"there is no profile to write: {document['lacks'][0]}")
    if not _NAME.fullmatch(name):
        raise ConfigErrors([ConfigError("--write", name, "must be letters, digits and _ . -", ["--write mine"])])
    if path.exists():
        rule = f"{path} exists and is not overwritten"
        raise ConfigErrors([ConfigError("--write", name, rule, [f"--write {name}_2"])])
    write_new(path, view.yaml(profile).encode(), before=lambda content: trust.note_own(path, content))
    say(f"launch: use it with cluster={name}")
    return path
