"""Report of this machine and its Slurm, of what they lack, and the cluster profile that follows from it.

Overrides say how to get a node (cluster.account=team cluster.partition=gpu). One short job looks from a node whether it
can write to the shared folder and which Python, packages and GPUs a job finds there. Exit status: 0, 4 where Slurm is
there but does not answer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from datetime import date
from pathlib import Path
from typing import Any

from launcher.actions.asking import Asked, folder, write_new
from launcher.actions.trust import require_trust
from launcher.base import machine
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError
from launcher.base.saying import say
from launcher.base.units import gib
from launcher.commands._options import add_trust, print_json, request_from
from launcher.config import trust
from launcher.config.hardware import option_of
from launcher.config.request import request
from launcher.data import token_folder
from launcher.job import versions
from launcher.preflight import job_python
from launcher.rundir import provenance
from launcher.slurm import client, survey
from launcher.slurm.survey import Survey

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="how to get a node: cluster.partition=gpu")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--wait", type=float, default=60, metavar="S", help="seconds for a node to answer (60); 0 asks none"
    )
    add_trust(parser)
    parser.add_argument("--write", metavar="NAME", help="keep the profile as conf/cluster/NAME.yaml")


def run(options: argparse.Namespace) -> int:
    """Survey the machine and its Slurm, print the findings, and write the profile with ``--write``."""
    document, status = {"machine": _machine(machine.facts()), **_cluster(options)}, 0
    if document["slurm"] is None and client.installed():
        status = SubmitError.exit_status
    if options.write is not None:
        document["written"] = str(_written(options.write, document))
    if options.json:
        print_json({"schema": 1, "doctor": document})
    else:
        print(_text(document))
    return status


def _cluster(options: argparse.Namespace) -> dict[str, Any]:
    """The answers of Slurm and of one node; where there is none, ``lacks`` says why.

    What a node says of its Python is kept, and later checks of runs with the same profile know its packages.
    """
    nothing, own = {"slurm": None, "profile": None}, list(job_python.findings(versions.every()))
    if not client.installed():
        return {**nothing, "lacks": [*own, "this machine has no Slurm: runs start here (cluster=local)"]}
    line = request_from(Asked, options).command_line()
    require_trust(line, trusted=options.trust)
    cluster = request(["cluster=slurm", *line.words], catalog=line.catalog).require().cluster
    try:
        found = survey.survey(cluster, folder() / (cluster.shared_folder or ""), wait_s=options.wait)
    except SubmitError as error:
        return {**nothing, "lacks": [*own, str(error)]}
    if found.node is not None:
        job_python.note(cluster, found.node, date.today().isoformat())
        own += job_python.findings(found.node["packages"], f" on {found.node['host']}")
    lacks = [*own, *survey.lacks(found)]
    return {"slurm": _slurm(found), "profile": survey.profile(found, cluster), "lacks": lacks}


def _machine(here: machine.Machine) -> dict[str, Any]:
    software = provenance.versions()
    return {
        "python": software["python"],
        "packages": software["packages"],
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in here.gpus],
        "host_memory_bytes": here.host_memory_bytes,
        "cpus": here.cpus,
        "token_ids": token_folder.kept(token_folder.root_here(os.environ, folder())).as_dict(),
    }


def _slurm(found: Survey) -> dict[str, Any]:
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


def _written(name: str, document: dict[str, Any]) -> Path:
    path, profile = folder() / "conf" / "cluster" / f"{name}.yaml", document["profile"]
    if profile is None:
        raise SubmitError(f"there is no profile to keep: {document['lacks'][0]}")
    if not _NAME.fullmatch(name):
        raise ConfigErrors([ConfigError("--write", name, "a name is letters, digits and _ . -", ["--write mine"])])
    if path.exists():
        rule = f"{path} exists and is not overwritten"
        raise ConfigErrors([ConfigError("--write", name, rule, [f"--write {name}_2"])])
    text = _yaml(profile).encode()
    write_new(path, text, before=lambda content: trust.note_own(path, content))
    say(f"launch: use it by cluster={name}")
    return path


def _yaml(profile: dict[str, Any]) -> str:
    lines = [f"{key}: {json.dumps(value) if isinstance(value, str) else value}" for key, value in profile.items()]
    return "\n".join(["defaults: [_base, _self_]", *lines]) + "\n"


def _text(document: dict[str, Any]) -> str:
    here, slurm = document["machine"], document["slurm"]
    lines = [f"this machine: {_host(here)}", _token_ids(here["token_ids"])]
    if slurm is not None:
        lines.append(f"Slurm {slurm['version']}")
        lines += [f"  {_partition(part)}" for part in slurm["partitions"]]
        if slurm["node"] is not None:
            lines.append(f"node {slurm['node']['host']}: {_host(slurm['node'])}; it writes to the shared folder")
        lines += ["", "# conf/cluster/NAME.yaml", _yaml(document["profile"]).rstrip()]
    if document["lacks"]:
        lines += ["", *(f"- {text}" for text in document["lacks"])]
    return "\n".join(lines)


def _token_ids(kept: dict[str, Any]) -> str:
    """Token ids that `launch prepare` and runs on this machine have kept."""
    clear = "; `launch prepare --clear` removes them" if kept["folders"] else ""
    return f"token ids of data: {gib(kept['bytes'])} in {kept['folders']} folders of {kept['path']}{clear}"


def _host(facts: dict[str, Any]) -> str:
    gpus = ", ".join(map(_gpu, facts["gpus"])) or "no GPU"
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    memory = gib(facts["host_memory_bytes"])
    return f"Python {facts['python']}, {facts['cpus']} CPUs, {memory}, {gpus}; {packages}"


def _gpu(gpu: dict[str, Any]) -> str:
    """A GPU, and the word for it on a machine that has none, by which also its speed is known."""
    option = option_of(gpu["name"])
    return f"{gpu['name']} {gib(gpu['memory_bytes'])}" + ("" if option is None else f" (hardware={option})")


def _partition(part: dict[str, Any]) -> str:
    limit = "no limit" if part["max_minutes"] is None else f"{part['max_minutes']} min"
    kinds = "; ".join(
        f"{kind['nodes']} x {kind['cpus']} CPUs, {kind['memory_mib']} MiB, "
        + (", ".join(f"{count} {name or 'GPU'}" for name, count in kind["gpus"].items()) or "no GPU")
        for kind in part["kinds"]
    )
    known = (("default", part["default"]), ("down", not part["up"]), ("preemptable", part["preempt_mode"] != "OFF"))
    marks = [word for word, holds in known if holds]
    return f"{part['name']}{' (' + ', '.join(marks) + ')' if marks else ''}: {limit}; {kinds}"
