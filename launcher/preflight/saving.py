"""Size and time of a run's checkpoints, and warnings if the disk, the save margin or the time limit is too small.

The bandwidth comes from ``cluster.storage_bandwidth``, or from earlier measured runs on this kind of cluster. If
neither is known, no time is predicted; the time on the fastest storage that NVIDIA recommends is then a lower bound,
which still finds a save margin that no storage could meet.
"""

from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base import machine
from launcher.base.errors import ConfigError
from launcher.base.frozen import dataclass
from launcher.base.machine import disk_free
from launcher.base.units import duration, gib, rounded
from launcher.estimate.memory.result import DiskSpace
from launcher.estimate.speed.result import SpeedEstimate
from launcher.preflight import this_machine
from launcher.slurm import jobs
from launcher.spec import RunSpec

if TYPE_CHECKING:
    from launcher.preflight.measured.constants import Storage

_ROUND_MIN = 10  # A proposed time limit is rounded up to a multiple of so many minutes.

type Stored = Callable[[RunSpec, int], Storage | None]
"""Gives the measured storage bandwidth of a run's cluster, for checkpoints of so many bytes."""

_NODE, _UNIT, _NODES = 20e9, 62e9, 32
"""Write bandwidth in bytes/s of one node and of one scalable unit, and the unit's nodes: "best" in the table of storage
performance of NVIDIA's DGX SuperPOD reference architecture for H100 (RA-11333)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """Size and time of a run's checkpoints."""

    disk: DiskSpace  # Their bytes.
    least_seconds: float  # Time of a save on the fastest storage.
    seconds: float | None = None  # Time until a checkpoint is complete; None if the bandwidth is unknown.
    # Time that training waits for a save; None if unknown, as for most background saves.
    blocking_seconds: float | None = None
    bandwidth: float | None = None  # Bytes/s of all ranks together.
    source: str = ""  # Where the bandwidth comes from, in words.

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
    """The size and the time of a valid run's checkpoints."""
    size, nodes = disk.checkpoint_bytes, spec.cluster.nodes
    least = size / min(_NODE * nodes, _UNIT * ceil(nodes / _NODES))
    given = spec.cluster.storage_bandwidth
    own = None if given is not None or stored is None else stored(spec, size)
    bandwidth = own.bandwidth if own is not None else given
    if bandwidth is None or spec.script is not None:  # What a user's script saves is unknown.
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


def _measured(own: "Storage") -> str:
    runs = "1 run" if own.runs == 1 else f"{own.runs} runs"
    return f"measured in {runs} on {own.nodes} node{'' if own.nodes == 1 else 's'}"


def _is_here(spec: RunSpec) -> bool:
    if spec.cluster.kind == "slurm":
        return jobs.installed()
    return spec.cluster.nodes == 1 and this_machine.is_meant(spec, machine.facts())


def too_large_here(spec: RunSpec, disk: DiskSpace) -> Iterator[ConfigError]:
    """A warning if the checkpoints need more than is free on the file system of the run's folder on this machine.

    If ``hardware.disk_bytes`` is known, the verdict covers it. A run for another machine, whose disks this one cannot
    see, gets the warning only if it saves during the run and not just at its end.
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
        f"the checkpoints take {gib(disk.kept_bytes)} ({each}{', including the one being written' * (number > keep)}), "
        f"and the file system of {folder} on this machine has {gib(free)} free"
    )
    fewer = free // disk.checkpoint_bytes - 1
    ways = [f"save.keep={fewer}"] if 1 <= fewer < keep else []
    last = ["save.every=null"] if spec.save.every is not None and disk.checkpoint_bytes <= free else []
    ways += [] if ways else last
    yield ConfigError("save.keep", keep, rule, [*ways, "run.directory=/path/on/a/larger/disk"])


def too_late(spec: RunSpec, speed: SpeedEstimate | None, saves: Saves) -> Iterator[ConfigError]:
    """Warnings if a Slurm run's time limit ends before the run, or before a checkpoint is complete.

    Reaching the limit is not a failure: Slurm signals the job ``cluster.save_margin_s`` before it, the job saves after
    the current step, and is requeued if ``cluster.requeues`` allows it. So there is a warning only if even the fastest
    speed of the error band is too slow; evaluations and start-up are not counted.
    """
    if spec.cluster.kind != "slurm" or spec.script is not None:
        return
    ends = None
    if speed is not None:
        ends = tuple(speed.step_seconds * speed.tokens_per_second_per_gpu / end for end in (speed.high, speed.low))
    yield from _margin(spec, ends, saves)
    if ends is not None and spec.cluster.time_limit_min is not None:
        yield from _limit(spec, spec.cluster.time_limit_min, *ends)


def _margin(spec: RunSpec, ends: tuple[float, ...] | None, saves: Saves) -> Iterator[ConfigError]:
    """A warning if the job cannot finish its step and write a complete checkpoint within the save margin."""
    limit, margin, (fastest, slowest) = spec.cluster.time_limit_min, spec.cluster.save_margin_s, ends or (0.0, 0.0)
    save = saves.least_seconds if saves.seconds is None else saves.seconds
    if fastest + save <= margin:
        return
    parts = []
    if ends is not None:
        parts.append(f"first finishes its current step, which takes an estimated {_between(fastest, slowest)}")
    if fastest <= margin or saves.seconds is not None:
        parts.append(_written(spec, saves))
    rule = f"the job is told to save {margin} s before its time limit, and {', and '.join(parts)}"
    enough = 2 * ceil(slowest + save)
    longer = "" if limit is None or enough < 60 * limit else f" cluster.time_limit_min={ceil(enough / 30)}"
    yield ConfigError("cluster.save_margin_s", margin, rule, [f"cluster.save_margin_s={enough}{longer}"])


def _written(spec: RunSpec, saves: Saves) -> str:
    """The checkpoint's size and the time to write it, or the time on the fastest recommended storage."""
    size = gib(saves.disk.checkpoint_bytes)
    if saves.seconds is not None and saves.bandwidth is not None:
        rate = rounded(saves.bandwidth / 1e9)
        return f"writes a checkpoint of {size}, which takes {duration(saves.seconds)} at {rate} GB/s ({saves.source})"
    nodes = f"{spec.cluster.nodes} node{'' if spec.cluster.nodes == 1 else 's'}"
    return (
        f"writes a checkpoint of {size}, which takes {duration(saves.least_seconds)} even with the fastest"
        f" storage that NVIDIA recommends for {nodes} (cluster.storage_bandwidth says how fast this one is)"
    )


def _limit(spec: RunSpec, limit_min: int, fastest: float, slowest: float) -> Iterator[ConfigError]:
    limit, margin = 60 * limit_min, spec.cluster.save_margin_s
    if spec.steps * fastest <= limit - margin:
        return
    needed = ceil((spec.steps * slowest + margin) / 60 / _ROUND_MIN) * _ROUND_MIN
    least = ceil(spec.steps * fastest / max(1, limit - margin))
    rule = (
        f"{spec.steps:,} steps take an estimated {_between(spec.steps * fastest, spec.steps * slowest)}:"
        f" {_at_the_limit(spec.cluster.requeues, least)}"
    )
    yield ConfigError("cluster.time_limit_min", limit_min, rule, [f"cluster.time_limit_min={needed}"])


def _between(low: float, high: float) -> str:
    return " to ".join(dict.fromkeys((duration(low), duration(high))))


def _at_the_limit(requeues: int, least: int) -> str:
    """What happens at the time limit, and how often at least."""
    if requeues:
        times = "once" if least == 2 else f"{least - 1} times"
        return f"the job saves, is requeued and continues from there, at least {times}"
    return "with cluster.requeues=0 the job saves and ends; launch resume continues it"
