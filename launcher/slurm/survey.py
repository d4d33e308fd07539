"""Surveys a cluster: its partitions, the facts of one node, pitfalls, and a profile for it.

Only a node can tell whether it can write to the shared folder and which Python, packages and GPUs a job finds, so a
short job runs ``launcher.slurm.probe`` there and answers through a file in that folder.
"""

import re
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.units import seconds_of
from launcher.slurm import script
from launcher.slurm.jobs import SlurmRefused, ask
from launcher.slurm.probe import ANSWER
from launcher.spec import ClusterSpec

_POLL_S = 0.3
_ACTIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Slurm's configuration, the partitions visible to this user, and one node's answer, or the ``problem``."""

    config: Mapping[str, str]
    partitions: "tuple[Partition, ...]"
    node: JsonObject | None
    problem: str | None


def survey(cluster: ClusterSpec, folder: Path, *, wait_s: float) -> Survey:
    """Ask Slurm and one of its nodes. Raises SubmitError if there is no Slurm here, or no answer."""
    config = dict(re.findall(r"^(\S+)\s*= (.*?)\s*$", ask("scontrol", "show", "config"), re.MULTILINE))
    known = tuple(partitions())
    node, problem = _ask_node(cluster, folder, wait_s) if wait_s else (None, "no node was asked")
    return Survey(config=config, partitions=known, node=node, problem=problem)


def _ask_node(cluster: ClusterSpec, folder: Path, wait_s: float) -> tuple[JsonObject | None, str | None]:
    try:
        place = Path(tempfile.mkdtemp(prefix=".launch-doctor-", dir=folder))
    except OSError as error:
        return None, f"{folder} cannot be written here: {error.strerror}"
    try:
        job = ask("sbatch", "--parsable", *_options(cluster, place), "--wrap", _command(cluster, place)).split(";")[0]
        return _answer(job.strip(), place, wait_s)
    except SlurmRefused as error:
        return None, f"Slurm refused to run a job on a node: {error}"
    finally:
        for path in place.iterdir():
            path.unlink()
        place.rmdir()


def _options(cluster: ClusterSpec, place: Path) -> list[str]:
    chosen = {key: getattr(cluster, key) for key in ("partition", "account", "qos", "constraint", "reservation")}
    options = [f"--{key}={value}" for key, value in chosen.items() if value is not None]
    if cluster.gpu_request != "none":
        options.append("--gpus-per-node=1" if cluster.gpu_request == "gpus_per_node" else "--gres=gpu:1")
    return [*options, "--nodes=1", "--ntasks=1", "--time=2", "--job-name=launch-doctor", f"--output={place}/out"]


def _command(cluster: ClusterSpec, place: Path) -> str:
    python = script.python(str(place), cluster)
    return "\n".join([*script.setup(cluster), f"{python} -m launcher.slurm.probe {shlex.quote(str(place))}"])


def _answer(job: str, place: Path, wait_s: float) -> tuple[JsonObject | None, str | None]:
    deadline, state = time.monotonic() + wait_s, "PENDING"
    while time.monotonic() < deadline and state in _ACTIVE:
        if (place / ANSWER).exists():
            return files.load_json(place / ANSWER), None
        time.sleep(_POLL_S)
        state, _, reason = ask("squeue", "-h", "--states=all", "-j", job, "-o", "%T %r").strip().partition(" ")
    if (place / ANSWER).exists():
        return files.load_json(place / ANSWER), None
    if state in _ACTIVE:
        ask("scancel", job)
        return None, f"no node answered within {wait_s:.0f} s (job {state.lower()}: {reason})"
    printed = files.last_lines(place / "out")[-2:]
    if not printed:
        return None, f"a node cannot write to {place.parent}: it is not shared, or not writable there"
    return None, f"the job ended as {state}: {' '.join(printed).strip()}"


def lacks(found: Survey) -> Iterator[str]:
    """Pitfalls of the cluster, in sentences."""
    signals = f"{found.config.get('SlurmctldParameters', '')},{found.config.get('PreemptParameters', '')}"
    if any(part.preempt_mode == "REQUEUE" for part in found.partitions) and "send_user_signal" not in signals:
        yield "preempted jobs get only SIGTERM (no preempt_send_user_signal): they must save within GraceTime"
    if "none" in found.config.get("AccountingStorageType", "none"):
        age = found.config.get("MinJobAge", "300 sec")
        yield f"no accounting: Slurm forgets a job {age} after its end"
    if found.problem is not None:
        yield found.problem
    if (node := found.node) is None:
        return
    missing = [name for name in ("torch", "submitit") if name not in node["packages"]]
    if missing:
        yield f"the job's Python on {node['host']} lacks {', '.join(missing)}: see cluster.python, .modules, .container"
    if not node["gpus"]:
        yield f"no GPU driver answers on {node['host']}: its memory is unknown, set hardware=..."


def profile(found: Survey, cluster: ClusterSpec) -> dict[str, Any]:
    """Settings for ``conf/cluster/`` for the requested partition, else the default one, else the one with most GPUs."""
    ups = [part for part in found.partitions if part.up]
    named = [part for part in ups if part.name == cluster.partition] or [part for part in ups if part.default] or ups
    if not named:
        return {"kind": "slurm"}
    part = max(named, key=lambda part: max((kind.gpu_count * kind.count for kind in part.kinds), default=0))
    kind = max(part.kinds, key=lambda kind: (kind.gpu_count, kind.count), default=None)
    given = {key: getattr(cluster, key) for key in ("account", "qos", "constraint", "reservation", "python")}
    settings = {"kind": "slurm", "partition": part.name, **{key: value for key, value in given.items() if value}}
    return settings | _of_kind(kind, part)


def _of_kind(kind: "NodeKind | None", part: "Partition") -> dict[str, Any]:
    if kind is None:
        return {}
    settings: dict[str, Any] = {"gpus_per_node": kind.gpu_count} if kind.gpu_count else {"gpu_request": "none"}
    if len({name for each in part.kinds for name, _ in each.gpus}) > 1:
        settings["gpu_type"] = max(kind.gpus, key=lambda item: item[1])[0]
    if part.max_minutes is not None:
        settings["time_limit_min"] = part.max_minutes
        if part.max_minutes < 4:
            settings["save_margin_s"] = part.max_minutes * 30
    return settings | {"cpus_per_node": kind.cpus}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Identical nodes of a partition; ``gpus`` are counts by Slurm's name of the type, empty if it has none."""

    count: int
    cpus: int
    memory_mib: int
    gpus: tuple[tuple[str, int], ...]
    features: tuple[str, ...] = ()

    @property
    def gpu_count(self) -> int:
        """GPUs of one node."""
        return sum(count for _, count in self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition; a limit is None if there is none, and ``default_minutes`` applies to jobs without a limit."""

    name: str
    default: bool
    up: bool
    max_minutes: int | None
    default_minutes: int | None
    max_nodes: int | None
    nodes: int
    preempt_mode: str
    kinds: tuple[NodeKind, ...]


def partitions(*, patience_s: float = 0) -> list[Partition]:
    """All partitions visible to this user; errors are those of ``jobs.ask``."""
    texts = ask("scontrol", "-o", "show", "partition", patience_s=patience_s).splitlines()
    kinds = _kinds(ask("sinfo", "-h", "-a", "-e", "-o", "%R|%D|%c|%m|%G|%f", patience_s=patience_s))
    return [_partition(dict(re.findall(r"(\w+)=(\S*)", text)), kinds) for text in texts if "PartitionName=" in text]


def _partition(facts: dict[str, str], kinds: dict[str, list[NodeKind]]) -> Partition:
    name = facts["PartitionName"]
    most, longest = facts.get("MaxNodes", "UNLIMITED"), minutes(facts.get("MaxTime", "UNLIMITED"))
    unset = minutes(facts.get("DefaultTime", "NONE"))
    return Partition(
        name=name,
        default=facts.get("Default") == "YES",
        up=facts.get("State") == "UP",
        max_minutes=longest,
        default_minutes=longest if unset is None else unset,
        max_nodes=int(most) if most.isdigit() else None,
        nodes=int(facts.get("TotalNodes", "0")),
        preempt_mode=facts.get("PreemptMode", "OFF"),
        kinds=tuple(kinds.get(name, ())),
    )


def _kinds(text: str) -> dict[str, list[NodeKind]]:
    found: dict[str, list[NodeKind]] = {}
    for line in text.splitlines():
        name, count, cpus, memory, gres, features = line.split("|")
        kind = NodeKind(
            count=int(count),
            cpus=_number(cpus),
            memory_mib=_number(memory),
            gpus=gpus(gres),
            features=() if features == "(null)" else tuple(features.split(",")),
        )
        found.setdefault(name, []).append(kind)
    return found


def gpus(gres: str) -> tuple[tuple[str, int], ...]:
    """The GPUs among a node's generic resources: ``gpu:h100:8(S:0-1),nvme:1`` is ``(("h100", 8),)``."""
    return tuple((kind, int(count)) for kind, count in re.findall(r"(?:^|,)gpu(?::([A-Za-z][\w.-]*))?:(\d+)", gres))


def minutes(text: str) -> int | None:
    """A time limit printed by Slurm as ``days-hours:minutes:seconds``, in minutes; None for no limit."""
    seconds = seconds_of(text)  # None for UNLIMITED, INFINITE and NONE.
    return None if seconds is None else seconds // 60


def _number(text: str) -> int:
    return int(text.rstrip("+"))  # sinfo appends "+" if nodes differ.
