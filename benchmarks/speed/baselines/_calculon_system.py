"""Calculon's system: engines, memory and networks, each with its efficiency by size."""

from __future__ import annotations

import math
from dataclasses import dataclass

type Table = tuple[tuple[float, float], ...]
"""Pairs of a size and the share of the rate that is reached from it on, largest size first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Values of Calculon's system file besides the processor's rates in ``conf/hardware``.

    Attributes:
        matrix: Share of the matrix engine's peak by GFLOP of one product.
        vector: The vector engine's FLOP/s in 16 bits.
        memory: Share of memory bandwidth by MB of one access.
    """

    matrix: Table
    vector: float
    memory: Table


A100 = Card(
    matrix=(
        (2048, 0.93), (512, 0.87), (128, 0.81), (64, 0.75), (32, 0.68), (16, 0.62), (8, 0.53), (4, 0.46), (2, 0.38),
        (0, 0.28),
    ),
    vector=78e12,
    memory=((100, 0.95), (1, 0.70), (0, 0.30)),
)  # fmt: skip
"""Memory: Calculon's a100_80e.json. Matrix: medians of aiconfigurator's A100 latencies, in place of Calculon's own.
Vector: NVIDIA A100 datasheet, FP16 without tensor cores."""

H100 = Card(
    matrix=(
        (128, 0.79), (64, 0.77), (32, 0.71), (16, 0.59), (8, 0.49), (4, 0.38), (2, 0.29), (0, 0.19),
    ),
    vector=133.8e12,
    memory=((100, 0.90), (10, 0.75), (1, 0.60), (0, 0.30)),
)  # fmt: skip
"""As above of the H100; the sizes at which Calculon's four shares of memory bandwidth begin are assumed."""

CARDS = {8.0: A100, 9.0: H100}
"""By compute capability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One tier: bytes per second of one GPU, the share of it that is reached, seconds of a message, GPUs."""

    bandwidth: float
    efficiency: float
    latency: float
    size: float
    processor_usage: float

    def seconds(self, operation: str, size: float, ranks: int) -> float:
        """``latency + bytes / (efficiency x bandwidth)``, bytes of a ring: ``(n - 1) / n``, twice of an all-reduce."""
        if ranks == 1:
            return 0.0
        scale = {"p2p": 1.0, "all_reduce": 2 * (ranks - 1) / ranks}.get(operation, (ranks - 1) / ranks)
        return self.latency + scale * size / (self.bandwidth * self.efficiency)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A processor and its networks, the inner one first."""

    card: Card
    peak: float
    memory_bandwidth: float
    networks: tuple[Network, Network]

    def matrix_seconds(self, flops: float, size: float) -> float:
        """A product: its FLOPs and then its bytes, not overlapped (``processing_mode: no_overlap``)."""
        return flops / (self.peak * _share(self.card.matrix, flops / 1e9)) + self.memory_seconds(size)

    def vector_seconds(self, flops: float, size: float) -> float:
        """An element-wise operation, likewise."""
        return flops / self.card.vector + self.memory_seconds(size)

    def memory_seconds(self, size: float) -> float:
        """One access of so many bytes."""
        return size / (self.memory_bandwidth * _share(self.card.memory, size / 1e6))

    def network(self, ranks: int) -> Network:
        """The innermost tier that has so many GPUs."""
        inner, outer = self.networks
        return inner if ranks <= inner.size else outer


def _share(table: Table, size: float) -> float:
    return next(share for start, share in table if size >= start)


def system_with(
    card: Card, *, peak: float, memory_bandwidth: float, link: float, link_gpus: int, network: float
) -> System:
    """A system of two tiers with the efficiencies and latencies of a100_80e.json."""
    return System(
        card=card,
        peak=peak,
        memory_bandwidth=memory_bandwidth,
        networks=(
            Network(bandwidth=link, efficiency=0.65, latency=1e-5, size=link_gpus, processor_usage=0.15),
            Network(bandwidth=network, efficiency=0.9, latency=2e-5, size=math.inf, processor_usage=0.02),
        ),
    )
