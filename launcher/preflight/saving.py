"""The cost of a run's checkpoints: bytes on disk, and seconds of a save by the bandwidth of the storage.

The bandwidth is what ``cluster.storage_bandwidth`` says, else what earlier runs of this kind of cluster measured. Where
neither is known no time is predicted, but none can be shorter than on the fastest storage that NVIDIA recommends, so
that a margin which no storage could keep is found even then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base import machine
from launcher.base.errors import ConfigError
from launcher.base.frozen import dataclass
from launcher.base.machine import disk_free
from launcher.base.units import gib
from launcher.estimate.memory.result import DiskSpace
from launcher.preflight import this_machine
from launcher.slurm import jobs
from launcher.spec import RunSpec

if TYPE_CHECKING:
    from launcher.preflight.measured.constants import Storage

type Stored = Callable[[RunSpec, int], Storage | None]
"""Gives the measured speed of the storage of a run's cluster, for checkpoints of so many bytes."""

_NODE, _UNIT, _NODES = 20e9, 62e9, 32
"""Bytes/s of writing of one node, of one scalable unit, and its nodes: "best" in the table of storage performance of
NVIDIA's DGX SuperPOD reference architecture for H100 (RA-11333)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """The checkpoints of a run."""

    disk: DiskSpace  # Their bytes.
    least_seconds: float  # Those that a save takes on the fastest storage.
    seconds: float | None = None  # Until a checkpoint is whole; None where the bandwidth is unknown.
    # Those for which training waits; None where that is unknown, as of most background saves.
    blocking_seconds: float | None = None
    bandwidth: float | None = None  # Bytes/s of all ranks together.
    source: str = ""  # Whose bandwidth it is, in words.

    def as_dict(self) -> dict[str, object]:
        """The key ``disk`` of ``launch check --json``."""
        return {
            "checkpoint_bytes": self.disk.checkpoint_bytes,
            "capacity_bytes": self.disk.capacity_bytes,
            "total_bytes": self.disk.kept_bytes,
            "save_seconds": self.seconds,
            "blocking_seconds": self.blocking_seconds,
            "storage_bandwidth": self.bandwidth,
            **({"swapped_bytes": self.disk.swapped_bytes} if self.disk.swapped_bytes else {}),
        }


def predicted(spec: RunSpec, disk: DiskSpace, stored: Stored | None = None) -> Saves:
    """The bytes and seconds of a valid run's checkpoints."""
    size, nodes = disk.checkpoint_bytes, spec.cluster.nodes
    least = size / min(_NODE * nodes, _UNIT * ceil(nodes / _NODES))
    given = spec.cluster.storage_bandwidth
    own = None if given is not None or stored is None else stored(spec, size)
    bandwidth = own.bandwidth if own is not None else given
    if bandwidth is None or spec.script is not None:  # What a script of the user's own saves is not known.
        return Saves(disk=disk, least_seconds=least)
    seconds = size / bandwidth
    share = (None if own is None else own.blocking) if spec.save.asynchronous else 1.0
    return Saves(
        disk=disk,
        least_seconds=min(least, seconds),
        seconds=seconds,
        blocking_seconds=None if share is None else share * seconds,
        bandwidth=bandwidth,
        source="cluster.storage_bandwidth" if own is None else _measured(own),
    )


def _measured(own: Storage) -> str:
    runs = "1 run" if own.runs == 1 else f"{own.runs} runs"
    return f"measured in {runs} on {own.nodes} node{'' if own.nodes == 1 else 's'}"


def _is_here(spec: RunSpec) -> bool:
    if spec.cluster.kind == "slurm":
        return jobs.installed()
    return spec.cluster.nodes == 1 and this_machine.is_meant(spec, machine.facts())


def too_large_here(spec: RunSpec, disk: DiskSpace) -> Iterator[ConfigError]:
    """A warning where the file system of the run's folder on this machine has less room than the checkpoints take.

    Where ``hardware.disk_bytes`` is known the verdict says it. A run for another machine, of which this one shows
    nothing, is warned of where its settings keep more than the one at its end.
    """
    if disk.capacity_bytes is not None or spec.script is not None:
        return
    folder = Path(spec.run.directory or spec.cluster.shared_folder or "runs")
    free = disk_free(folder.absolute())
    if free is None or disk.kept_bytes <= free or (spec.save_every is None and not _is_here(spec)):
        return
    number, keep = disk.kept_bytes // disk.checkpoint_bytes, spec.save.keep
    each = f"{number} of {gib(disk.checkpoint_bytes)}" if number > 1 else "one"
    rule = (
        f"the checkpoints take {gib(disk.kept_bytes)} ({each}{', the one in writing among them' * (number > keep)}), "
        f"and the file system of {folder} on this machine has {gib(free)} free"
    )
    fewer = free // disk.checkpoint_bytes - 1
    ways = [f"save.keep={fewer}"] if 1 <= fewer < keep else []
    last = ["save.every=null"] if spec.save.every is not None and disk.checkpoint_bytes <= free else []
    ways += [] if ways else last
    yield ConfigError("save.keep", keep, rule, [*ways, "run.directory=/path/on/a/larger/disk"])
