"""The cost of a run's checkpoints, bytes and seconds of a save by the storage's bandwidth, beside disk and time limit.

The bandwidth is what ``cluster.storage_bandwidth`` says, else what earlier runs of this kind of cluster measured. Where
neither is known no time is predicted, but none can be shorter than on the fastest storage that NVIDIA recommends, so
that a margin which no storage could keep is found even then.
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

_ROUND_MIN = 10  # Minutes to which a limit that is proposed is rounded up.

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


def _measured(own: "Storage") -> str:
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


def too_late(spec: RunSpec, speed: SpeedEstimate | None, saves: Saves) -> Iterator[ConfigError]:
    """Warnings of a valid run in a queue whose time limit comes before its end, or before a save of it is whole.

    A limit that is over is no failure: the job is told ``cluster.save_margin_s`` before it, saves after its step, and
    goes back into the queue where ``cluster.requeues`` lets it. So only where the fastest speed of the error band would
    not do; evaluations and starts are not counted.
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
    """A margin in which the job cannot end its step and write the checkpoint whole, also one in the background."""
    limit, margin, (fastest, slowest) = spec.cluster.time_limit_min, spec.cluster.save_margin_s, ends or (0.0, 0.0)
    save = saves.least_seconds if saves.seconds is None else saves.seconds
    if fastest + save <= margin:
        return
    parts = []
    if ends is not None:
        parts.append(f"ends the step that it is in first, which takes {_between(fastest, slowest)} by the estimate")
    if fastest <= margin or saves.seconds is not None:
        parts.append(_written(spec, saves))
    rule = f"the job is told to save {margin} s before its time limit, and {', and '.join(parts)}"
    enough = 2 * ceil(slowest + save)
    longer = "" if limit is None or enough < 60 * limit else f" cluster.time_limit_min={ceil(enough / 30)}"
    yield ConfigError("cluster.save_margin_s", margin, rule, [f"cluster.save_margin_s={enough}{longer}"])


def _written(spec: RunSpec, saves: Saves) -> str:
    """The checkpoint and the time that it takes, or the least that any storage known to us would take."""
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
        f"{spec.steps:,} steps take {_between(spec.steps * fastest, spec.steps * slowest)} by the estimate:"
        f" {_afterwards(spec.cluster.requeues, least)}"
    )
    yield ConfigError("cluster.time_limit_min", limit_min, rule, [f"cluster.time_limit_min={needed}"])


def _between(low: float, high: float) -> str:
    return " to ".join(dict.fromkeys((duration(low), duration(high))))


def _afterwards(requeues: int, least: int) -> str:
    """How the run goes on after the time limit, and in how many jobs at least."""
    if requeues:
        times = "once" if least == 2 else f"{least - 1} times"
        return f"the job saves, goes back into the queue and on from there, at least {times}"
    return "the job saves and ends, as cluster.requeues=0; launch resume goes on"
