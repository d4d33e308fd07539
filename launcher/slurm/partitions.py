"""Partitions and nodes as ``scontrol`` and ``sinfo`` describe them, from Slurm 22.05 on.

Limits of a partition are in ``scontrol show partition``, its nodes in ``sinfo``, one line for each kind of equal nodes.
Both are read as text, in forms that Slurm 22.05 prints already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.base.units import seconds_of
from launcher.slurm.client import ask


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Equal nodes of a partition: GPUs by Slurm's name of their type, empty where it has none."""

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
    """One partition; ``max_minutes`` and ``max_nodes`` are None where they are unlimited.

    ``default_minutes`` are those of a job that names no time limit.
    """

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
    """All partitions that this user sees.

    Raises:
        SubmitError: There is no Slurm here, or it does not answer.
        SlurmRefused: It answers with an error.
    """
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
    """The GPUs in a node's generic resources: ``gpu:h100:8(S:0-1),nvme:1`` is ``(("h100", 8),)``."""
    found = re.findall(r"(?:^|,)gpu(?::([A-Za-z][\w.-]*))?:(\d+)", gres)
    return tuple((kind, int(count)) for kind, count in found)


def minutes(text: str) -> int | None:
    """A time limit as Slurm prints it, ``days-hours:minutes:seconds``, in minutes; None for no limit."""
    seconds = seconds_of(text)  # None for UNLIMITED, INFINITE and NONE.
    return None if seconds is None else seconds // 60


def _number(text: str) -> int:
    return int(re.match(r"\d+", text)[0])  # type: ignore[index]
