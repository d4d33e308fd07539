"""The text of ``launch doctor``: this machine, its Slurm, what is missing, and the cluster profile."""

import json
from typing import Any

from launcher.base.units import gib
from launcher.config.open_values import option_of


def text(document: dict[str, Any]) -> str:
    """The findings for a terminal."""
    here, slurm = document["machine"], document["slurm"]
    lines = [f"this machine: {_host(here)}", _token_ids(here["token_ids"])]
    if slurm is not None:
        lines.append(f"Slurm {slurm['version']}")
        lines += [f"  {_partition(part)}" for part in slurm["partitions"]]
        if slurm["node"] is not None:
            lines.append(f"node {slurm['node']['host']}: {_host(slurm['node'])}; it can write to the shared folder")
        lines += ["", "# conf/cluster/NAME.yaml", yaml(document["profile"]).rstrip()]
    if document["lacks"]:
        lines += ["", *(f"- {text}" for text in document["lacks"])]
    return "\n".join(lines)


def yaml(profile: dict[str, Any]) -> str:
    """The profile as a file of ``conf/cluster/``."""
    lines = [f"{key}: {json.dumps(value) if isinstance(value, str) else value}" for key, value in profile.items()]
    return "\n".join(["defaults: [_base, _self_]", *lines]) + "\n"


def _token_ids(kept: dict[str, Any]) -> str:
    clear = "; `launch prepare --clear` removes them" if kept["folders"] else ""
    return f"token ids of data: {gib(kept['bytes'])} in {kept['folders']} folders of {kept['path']}{clear}"


def _host(facts: dict[str, Any]) -> str:
    gpus = ", ".join(map(_gpu, facts["gpus"])) or "no GPU"
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    memory = gib(facts["host_memory_bytes"])
    return f"Python {facts['python']}, {facts['cpus']} CPUs, {memory}, {gpus}; {packages}"


def _gpu(gpu: dict[str, Any]) -> str:
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
