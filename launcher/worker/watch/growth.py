"""Memory that grows from sample to sample: which pile, how fast, and when the memory will be full.

The rule, for a series' last eighteen samples or for all of them: every value of the middle third is above every value
of the first, every value of the last above those of the middle, and the median of the last third exceeds that of the
first by more than 1% of the memory's size. Eighteen values without a trend come in such an order once in 17 million
times (18! / (6!)^3). The rate is the difference of the two medians per step. The first samples after a start do not
count; growth of a node's memory is reported only if it fills the node before the run ends.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from launcher.base.frozen import dataclass
from launcher.base.units import MIB, gib
from launcher.job.memory import MemoryRecord

_FEWEST = 18  # Samples that a trend needs.
_MOST = 72  # Samples that are kept; beyond it every second older one is dropped.
_WARM_UP = 2  # Samples that do not count: caches of the allocator, of kernels and of the interpreter fill up.
_SHARE = 0.01  # Of the memory's size: less growth is not worth a report.

type Where = Literal["device", "rank", "node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Memory that grows: where, how fast, and when it will be full."""

    where: Where  # On the rank's device, in the rank's part of host memory, or on its node.
    pile: str = ""  # The pile of the device; empty elsewhere.
    peak: bool = False  # True if the pile grows only at its peak and not between steps.
    bytes_per_step: int
    full_at: int | None  # The step at which the memory is full; None if its size is unknown.
    rank: int
    node: str
    # Tokens of the micro-batch in the first and the newest sample, if that grew, too.
    tokens: tuple[int, int] | None = None

    def matters(self, steps: int) -> bool:
        """True unless it is a node's memory that is not full by the last step: other jobs may use that, too."""
        return self.where != "node" or (self.full_at is not None and self.full_at <= steps)

    def sentence(self, steps: int) -> str:
        """Describe the growth for a person; ``steps`` is the last step of the run."""
        what = {
            "device": f"the {self.pile.replace('_', ' ')} pile of rank {self.rank} on {self.node} grows by",
            "rank": f"the host memory of rank {self.rank} on {self.node} grows by",
            "node": f"the host memory in use on {self.node} grows by",
        }[self.where]
        rate = gib(self.bytes_per_step) if self.bytes_per_step >= MIB // 10 else f"{self.bytes_per_step:,} bytes"
        text = f"{what} {rate} a step{' at its peak' if self.peak else ''}"
        if self.tokens:
            text += f" (micro-batches went from {self.tokens[0]:,} to {self.tokens[1]:,} tokens)"
        if self.full_at is None or self.full_at > steps:
            return text
        place = "its memory" if self.where == "device" else "the node's memory"
        return f"{text}: at step {self.full_at:,} of {steps:,} {place} is full"


def fills_first(growth: Growth) -> tuple[bool, int]:
    """Sort key: the memory that is full soonest comes first."""
    return growth.full_at is None, growth.full_at or 0


class GrowthDetector:
    """The samples of one rank, searched for growth."""

    def __init__(self) -> None:
        self._ignored = 0
        self._records: list[MemoryRecord] = []

    def add(self, record: MemoryRecord) -> list[Growth]:
        """Add a sample and return the growth found so far, the soonest to fill its memory first."""
        if record.static is None:  # A checkpoint or an evaluation.
            return []
        if self._ignored < _WARM_UP:
            self._ignored += 1
            return []
        self._records.append(record)
        if len(self._records) > _MOST:
            self._records = self._records[:-_FEWEST:2] + self._records[-_FEWEST:]
        device = self._device()
        if device is not None and record.device_used_bytes is None:  # A CPU's tensors are host memory themselves.
            return [device]
        found = [growth for growth in (device, self._host("rank"), self._host("node")) if growth]
        return sorted(found, key=fills_first)

    def rewind(self) -> None:
        """Forget all samples: the run goes back."""
        self._records.clear()

    def _device(self) -> Growth | None:
        newest = self._records[-1]
        used = newest.device_used_bytes or newest.reserved_bytes or highest(newest)
        total = newest.device_bytes
        if total is None and newest.host is not None:
            used, total = newest.host.node_used_bytes or 0, newest.host.node_bytes
        static: list[Mapping[str, int]] = [record.static or {} for record in self._records]
        rates = {
            (pile, peak): rate
            for peak, samples in ((False, static), (True, self._peaks()))
            for pile in samples[-1]
            if (rate := self._rate([each.get(pile, 0) for each in samples], highest(newest)))
        }
        if not rates:
            return None
        still = {key: rate for key, rate in rates.items() if not key[1]}
        pile, peak = max(still or rates, key=lambda key: rates[key])
        rate, tokens = rates[pile, peak], (self._records[0].tokens, newest.tokens)
        longer = (tokens[0], tokens[1]) if tokens[0] and tokens[1] and tokens[1] > tokens[0] else None
        return replace(self._growth("device", rate, used, total), pile=pile, peak=peak, tokens=longer)

    def _peaks(self) -> list[Mapping[str, int]]:
        return [
            {
                pile: max(phase.piles.get(pile, 0) for phase in record.phases.values())
                for pile in {pile for phase in record.phases.values() for pile in phase.piles}
            }
            for record in self._records
        ]

    def _host(self, where: Literal["rank", "node"]) -> Growth | None:
        newest = self._records[-1].host
        if newest is None:
            return None
        every = [record.host for record in self._records if record.host is not None]
        values = [host.rank_bytes if where == "rank" else host.node_used_bytes or 0 for host in every]
        rate = self._rate(values, values[-1]) if len(values) == len(self._records) else None
        used = newest.node_used_bytes if newest.node_used_bytes is not None else newest.rank_bytes
        return self._growth(where, rate, used, newest.node_bytes) if rate else None

    def _rate(self, values: Sequence[int], holds: int) -> float | None:
        steps = [record.step for record in self._records]
        rates = (trend(steps[start:], values[start:], _SHARE * holds) for start in {max(0, len(values) - _FEWEST), 0})
        return next((rate for rate in rates if rate), None)

    def _growth(self, where: Where, rate: float, used: int, total: int | None) -> Growth:
        newest = self._records[-1]
        return Growth(
            where=where,
            bytes_per_step=max(1, round(rate)),
            full_at=None if total is None else newest.step + max(0, int((total - used) / rate)),
            rank=newest.rank,
            node=newest.node,
        )


def trend(steps: Sequence[int], values: Sequence[int], least: float) -> float | None:
    """Bytes per step of a rise by more than ``least``; None if this module's rule finds no rise."""
    size = len(values) // 3
    if 3 * size < _FEWEST:
        return None
    thirds = values[:size], values[size:-size], values[-size:]  # A remainder goes to the middle.
    if not (max(thirds[0]) < min(thirds[1]) and max(thirds[1]) < min(thirds[2])):
        return None
    rise = statistics.median(thirds[2]) - statistics.median(thirds[0])
    apart = statistics.median(steps[-size:]) - statistics.median(steps[:size])
    return rise / apart if rise > least and apart > 0 else None


def highest(record: MemoryRecord) -> int:
    """The highest allocated bytes over a record's phases."""
    return max((phase.allocated_bytes for phase in record.phases.values()), default=0)
