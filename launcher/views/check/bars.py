"""The piles of the fullest rank as bars, and the whole process against the capacity.

What torch's allocator has cached and gives back before it runs out of memory is drawn apart from what is needed: a run
that fits may hold more than the capacity on paper, and its cache is then the smaller for it. The legend below the bars
tells the four counters apart that people read: allocated, needed, reserved, whole process.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.units import MIB, gib
from launcher.estimate.memory.result import MemoryEstimate
from launcher.spec import HardwareSpec

SMALLEST = MIB // 20
"""Bytes of the smallest pile that a line of tenths of a MiB shows as more than nothing."""

_PILE, _NEEDED, _OVER, _CACHED, _CAPACITY = "#=!.-"


def bars(estimate: MemoryEstimate, capacity: int | None, width: int) -> Iterator[str]:
    """One line a pile with a bar as its share of the whole, then the whole against the capacity."""
    piles = sorted((pile for pile in estimate.piles if pile.bytes >= SMALLEST), key=lambda pile: -pile.bytes)
    total, room = max(1, estimate.peak.device_bytes), max(10, width - 36)
    for pile in piles:
        cached = round(room * cached_bytes(estimate) / total) if pile.pile == "fragmentation" else 0
        length = max(1, round(room * pile.bytes / total))
        yield _bar(pile.pile.replace("_", " "), pile.bytes, _PILE * (length - cached) + _CACHED * cached)
    scale = room / max(total, capacity or 0)
    needed = total - cached_bytes(estimate)
    inside = round(scale * min(needed, needed if capacity is None else capacity))
    over = round(scale * needed) - inside
    rest = round(scale * total) - inside - over
    yield _bar("whole process", total, _NEEDED * inside + _OVER * over + _CACHED * rest)
    if capacity is not None:
        yield _bar("capacity", capacity, _CAPACITY * round(scale * capacity))


def _bar(name: str, size: int, bar: str) -> str:
    return f"  {name:17}{gib(size):>12}  {bar}".rstrip()


def cached_bytes(estimate: MemoryEstimate) -> int:
    """Bytes that the allocator has reserved beyond what it needs, and gives back."""
    return max(0, estimate.peak.reserved_bytes - estimate.peak.needed_bytes)


def legend(estimate: MemoryEstimate, hardware: HardwareSpec, capacity: int | None) -> Iterator[str]:
    """The characters of the whole process and of the capacity in words; none where there is nothing to tell apart."""
    peak, cached = estimate.peak, cached_bytes(estimate)
    needed = peak.device_bytes - cached
    if peak.device_bytes != peak.allocated_bytes:
        parts = [f"{_bare(peak.allocated_bytes)} allocated"]
        parts += [f"{_bare(lost)} lost between"] if (lost := peak.needed_bytes - peak.allocated_bytes) else []
        parts += [f"{_bare(outside)} outside of torch"] if (outside := estimate.outside_bytes) else []
        yield f"{_NEEDED} needed {gib(needed)}: {', '.join(parts)}"
    if capacity is not None and needed > capacity:
        yield f"{_OVER} needed beyond the capacity: {gib(needed - capacity)}"
    if cached:
        reserved = f"torch keeps it (reserved {_bare(peak.reserved_bytes)})"
        yield f"{_CACHED} cached {gib(cached)}: {reserved}, gives it back when short"
    if capacity is not None and hardware.memory_bytes is not None and hardware.memory_bytes > capacity:
        kept = f"{_bare(hardware.memory_bytes - capacity)}{' (assumed)' if hardware.reserved_bytes is None else ''}"
        yield f"{_CAPACITY} capacity: {gib(hardware.memory_bytes)} less the driver's {kept}"


def _bare(size: int) -> str:
    """A size without its unit, where another of the line has it."""
    return gib(size).removesuffix(" GiB")
