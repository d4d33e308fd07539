"""Checks before a submission whether Slurm would accept the job, and whether the job could ever start.

Slurm accepts some jobs that exceed a partition's limits and never starts them, so the profile is compared with the
partitions first. Then ``sbatch --test-only`` judges the script, and a refusal is translated to the key that causes it.
"""

import getpass
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.base.errors import ConfigError, ConfigErrors, Refused, SubmitError, raise_any
from launcher.slurm.jobs import SlurmRefused, ask
from launcher.slurm.survey import NodeKind, Partition, partitions
from launcher.spec import ClusterSpec

_REFUSALS = {
    "Invalid account": ("account", "Slurm knows no such account for this user and partition"),
    "Invalid qos": ("qos", "Slurm has no such quality of service for this user and partition"),
    "Invalid feature": ("constraint", "no node has this feature"),
    "reservation is invalid": ("reservation", "Slurm has no such reservation for this user"),
    "Invalid node name": ("nodelist", "Slurm knows no such node"),
    "dependency problem": ("dependency", "Slurm knows no such job, or none that this one could wait for"),
    "Invalid license": ("licenses", "Slurm has no such licence, or not so many"),
    "Invalid --time": ("time_limit_min", "Slurm cannot read this time limit"),
    "time limit is invalid": ("time_limit_min", "it is missing, or above what the account or the partition allows"),
    "Invalid generic resource": ("gpu_request", "Slurm knows no such GPUs here"),
}
"""By the part of sbatch's refusal that names the cause: the key under ``cluster`` that causes it, and our rule."""

_DEFAULTED = ("account", "qos", "constraint", "reservation", "nodelist", "dependency", "licenses")
"""Keys without which Slurm uses its own default, or requests nothing."""

_WAYS = 4  # Accounts or qualities of service that a message names.
_UNAVAILABLE = "Requested node configuration is not available"
"""sbatch's message for nodes that are too small, and for nodes that have not answered yet."""

_BETWEEN_S = 0.5
_IN_MEMORY = ("tmpfs", "ramfs")  # File systems, as stat(1) names them, that no other machine sees.


def check(cluster: ClusterSpec, text: str, *, patience_s: float) -> None:
    """Check that Slurm would accept and start a job. Raises ConfigErrors, which name the key, or another refusal."""
    try:
        known = partitions(patience_s=patience_s)
    except SlurmRefused as error:
        raise SubmitError(f"Slurm refuses to describe its partitions: {error}") from None
    errors = list(_errors(cluster, known))
    raise_any(errors)
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(text)
        file.flush()
        _test_only(cluster, file.name, patience_s)


def _test_only(cluster: ClusterSpec, script: str, patience_s: float) -> None:
    """Let sbatch judge the script; a controller that has just started knows its nodes only after they answered."""
    deadline, all_known = time.monotonic() + patience_s, False
    while True:
        try:
            ask("sbatch", "--test-only", script, patience_s=patience_s)
            return
        except SlurmRefused as error:
            if _UNAVAILABLE not in str(error) or all_known or time.monotonic() >= deadline:
                raise _refused(cluster, str(error)) from None
            # The last node may have answered since; then sbatch judges once more.
            all_known = not ask("sinfo", "-h", "-t", "unk", "-o", "%N").strip()
        if not all_known:
            time.sleep(_BETWEEN_S)


def check_folder(directory: Path) -> None:
    """Refuse a run directory in this machine's memory; ``launch doctor`` shows whether nodes see one on disk."""
    done = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True, check=False)
    if done.stdout.strip() in _IN_MEMORY:
        raise Refused(
            f"{directory} is in this machine's memory ({done.stdout.strip()}), which compute nodes cannot see: "
            "set cluster.shared_folder or run.directory to a folder that the login node and the nodes share"
        )


def _refused(cluster: ClusterSpec, text: str) -> Exception:
    for words, (key, rule) in _REFUSALS.items():
        if words in text:
            return ConfigErrors([ConfigError(f"cluster.{key}", getattr(cluster, key), rule, _ways_out(cluster, key))])
    short = text.replace("allocation failure: ", "").replace("sbatch: error: ", "").replace("sbatch: ", "")
    return Refused(f"Slurm would refuse the job: {short}")


def _ways_out(cluster: ClusterSpec, key: str) -> list[str]:
    names = _of_the_user(key) if key in ("account", "qos") else []
    ways = [f"cluster.{key}={name}" for name in names if name != getattr(cluster, key)]
    return ways[:_WAYS] or ([f"cluster.{key}=null"] if key in _DEFAULTED else [])


def _of_the_user(key: str) -> list[str]:
    user, fields = getpass.getuser(), "defaultaccount,account" if key == "account" else "defaultqos,qos"
    if shutil.which("sacctmgr") is None:
        return []
    try:
        text = ask("sacctmgr", "-nP", "show", "user", user, "withassoc", f"format={fields}")
    except (SlurmRefused, SubmitError):
        return []
    rows = [line.split("|") for line in text.splitlines()]
    found = [row[0] for row in rows] + [name for row in rows for name in row[-1].split(",")]
    return list(dict.fromkeys(name for name in found if name))


def _errors(cluster: ClusterSpec, known: list[Partition]) -> Iterator[ConfigError]:
    wanted = cluster.partition.split(",") if cluster.partition else []
    chosen = [part for part in known if part.name in wanted or (not wanted and part.default)]
    missing = sorted(set(wanted) - {part.name for part in known})
    ups = [part for part in chosen if part.up]
    rule = "the partition is down, so the job would wait forever"
    if missing or not chosen:
        rule = f"Slurm has no partition {', '.join(missing)}" if missing else "Slurm has no default partition: name one"
    if missing or not ups:
        ways = [f"cluster.partition={part.name}" for part in known if part.up]
        yield ConfigError("cluster.partition", cluster.partition, rule, ways)
        return
    names, kinds = ", ".join(part.name for part in ups), [kind for part in ups for kind in part.kinds]
    yield from _limits(cluster, ups, names)
    yield from _host(cluster, kinds, names)
    yield from _gpus(cluster, kinds, names)


def _at_most(cluster: ClusterSpec, key: str, most: int, rule: str) -> Iterator[ConfigError]:
    value = getattr(cluster, key)
    if value is not None and value > most:
        yield ConfigError(f"cluster.{key}", value, rule, [f"cluster.{key}={most}"])


def _limits(cluster: ClusterSpec, chosen: list[Partition], names: str) -> Iterator[ConfigError]:
    limits = [part.max_minutes for part in chosen if part.max_minutes is not None]
    if len(limits) == len(chosen):
        longest = max(limits)
        rule = f"partition {names} ends jobs after {longest} minutes, so Slurm would accept the job and never start it"
        yield from _at_most(cluster, "time_limit_min", longest, rule)
    yield from _margin(cluster, chosen)
    nodes = max(part.nodes if part.max_nodes is None else min(part.nodes, part.max_nodes) for part in chosen)
    yield from _at_most(cluster, "nodes", nodes, f"partition {names} allows a job at most {nodes} nodes")


def _margin(cluster: ClusterSpec, chosen: list[Partition]) -> Iterator[ConfigError]:
    limited = [part for part in chosen if part.default_minutes is not None]
    if cluster.time_limit_min is not None or not limited:
        return
    part = min(limited, key=lambda part: part.default_minutes or 0)
    limit, margin = part.default_minutes or 0, cluster.save_margin_s
    if margin < limit * 60:
        return
    rule = f"partition {part.name} ends a job without a time limit after {limit * 60} s: it would save as it starts"
    needed = margin // 30
    ways = [f"cluster.save_margin_s={max(1, limit * 30)}"]
    if part.max_minutes is None or needed <= part.max_minutes:
        ways.insert(0, f"cluster.time_limit_min={needed}")
    yield ConfigError("cluster.save_margin_s", margin, rule, ways)


def _host(cluster: ClusterSpec, kinds: list[NodeKind], names: str) -> Iterator[ConfigError]:
    cpus = max((kind.cpus for kind in kinds), default=0)
    yield from _at_most(cluster, "cpus_per_node", cpus, f"a node of partition {names} has at most {cpus} CPUs")
    wanted, most = _mib(cluster.memory), max((kind.memory_mib for kind in kinds), default=0)
    if cluster.memory_request == "mem" and wanted is not None and wanted > most:
        rule = f"a node of partition {names} has at most {most} MiB"
        yield ConfigError("cluster.memory", cluster.memory, rule, [f"cluster.memory={most}M"])


def _mib(memory: str | None) -> float | None:
    """A memory size as sbatch reads it, in MiB, or with the suffix K, M, G or T; None if it is not one."""
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", memory or "", re.IGNORECASE)
    return None if found is None else int(found[1]) * 1024.0 ** ("KMGT".index(found[2].upper() or "M") - 1)


def _gpus(cluster: ClusterSpec, kinds: list[NodeKind], names: str) -> Iterator[ConfigError]:
    if cluster.gpu_request == "none":
        return
    types = sorted({name for kind in kinds for name, _ in kind.gpus if name})
    if cluster.gpu_type is not None and cluster.gpu_type not in types:
        rule = f"the nodes of partition {names} have {', '.join(types) or 'no typed'} GPUs"
        yield ConfigError("cluster.gpu_type", cluster.gpu_type, rule, [f"cluster.gpu_type={name}" for name in types])
        return
    fitting = (sum(count for name, count in kind.gpus if cluster.gpu_type in (None, name)) for kind in kinds)
    most = max(fitting, default=0)
    if most == 0:
        rule = f"the nodes of partition {names} have no GPUs"
        yield ConfigError("cluster.gpu_request", cluster.gpu_request, rule, ["cluster.gpu_request=none"])
    else:
        yield from _at_most(cluster, "gpus_per_node", most, f"a node of partition {names} has at most {most} GPUs")
