"""The runs to measure: runs of our own workers, as overrides, and what the estimate says of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from launcher.memory.result import MemoryEstimate

_SMALL = ("model=1b", "train.sequence_length=2048", "train.micro_batch_size=2")
_LARGE = ("model=7b", "train.sequence_length=4096")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run.

    Attributes:
        name: What sets it apart.
        world: Ranks; rank 0 is measured. Of more than one, the others do not exist.
        overrides: The run, less its world.
    """

    name: str
    world: int
    overrides: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The whole command line: up to eight ranks a node, on the GPU of this machine."""
        nodes = max(1, self.world // 8)
        return (*self.overrides, f"cluster.nodes={nodes}", f"cluster.gpus_per_node={self.world // nodes}")


def points() -> tuple[Point, ...]:
    """The matrix: what one rank trains alone, and what it holds of a larger world."""
    return (*_alone(), *_shared())


def _alone() -> Iterator[Point]:
    one = (*_SMALL, "parallel=ddp", "precision=bf16")
    for mode in ("none", "selective", "full"):
        yield Point(name=f"1b alone, checkpointing {mode}", world=1, overrides=(*one, f"checkpointing={mode}"))
    changes = {
        "fp32": ("precision=fp32",),
        "chunked loss": ("train.loss=chunked",),
        "foreach": ("optimizer.fused=false", "optimizer.foreach=true"),
        "two micro-batches": ("train.global_batch_size=4",),
        "expandable segments": ("train.allocator=expandable",),
        "fsdp": ("parallel=fsdp",),
        "zero 2": ("parallel=zero2",),
        "zero 3": ("parallel=zero3",),
    }
    for name, words in changes.items():
        yield Point(name=f"1b alone, {name}", world=1, overrides=(*one, *words))
    yield Point(name="7b alone, lora", world=1, overrides=(*_LARGE, "parallel=ddp", "adapter=lora"))


def _shared() -> Iterator[Point]:
    for preset, world in product(("ddp", "fsdp", "zero0", "zero1", "zero2", "zero3"), (2, 8)):
        yield Point(name=f"1b, {preset} over {world}", world=world, overrides=(*_SMALL, f"parallel={preset}"))
    for mode, preset in product(("none", "full"), ("fsdp", "zero3")):
        large = (*_LARGE, f"parallel={preset}", f"checkpointing={mode}")
        yield Point(name=f"7b, {preset} over 8, checkpointing {mode}", world=8, overrides=large)
    changes: dict[str, tuple[int, tuple[str, ...]]] = {
        "fsdp over 64": (64, ("parallel=fsdp",)),
        "hsdp over 16": (16, ("parallel=hsdp", "parallel.replicate=2")),
        "gathered from forward to backward": (8, ("parallel=fsdp", "backend.reshard_after_forward=false")),
        "with the sizes of llama3_8b over 8": (8, ("parallel=fsdp", "model=llama3_8b")),
    }
    for name, (world, words) in changes.items():
        yield Point(name=f"7b, {name}", world=world, overrides=(*_LARGE, *words, "checkpointing=full"))


def predicted(estimate: MemoryEstimate, world: int) -> dict[str, Any]:
    """The estimate in the counters that are measured.

    A rank whose peers do not exist has no communicator, so ``device_bytes`` is without them.
    """
    peak = estimate.peak
    absent = sum(pile.bytes for pile in estimate.piles if pile.pile == "communicators") if world > 1 else 0
    return {
        "static_bytes": estimate.static_bytes,
        "phases": dict(estimate.phases),
        "peak_allocated_bytes": peak.allocated_bytes,
        "peak_reserved_bytes": peak.reserved_bytes,
        "device_bytes": peak.device_bytes - absent,
    }


def ratios(said: dict[str, Any], measured: dict[str, Any]) -> dict[str, float]:
    """Predicted over measured, of every counter that both have."""
    pairs = {name: (value, measured.get(name)) for name, value in said.items() if name != "phases"}
    pairs |= {name: (value, measured["phases"].get(name)) for name, value in said["phases"].items()}
    return {name: round(value / seen, 4) for name, (value, seen) in pairs.items() if seen}
