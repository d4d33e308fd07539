"""Time of NCCL's rings and trees across nodes, by the cost model with which NCCL 2.27.5 itself chooses among them.

``latency + bytes / bandwidth`` of each algorithm and protocol, for ``inside`` ranks on each of ``nodes`` nodes, as in
meta-pytorch/autoparallel@a54c2529 (BSD-3), ``nccl_cost_model.py``, for H100 with 400 Gb/s per GPU. The share of it that
real rings reach is :func:`reached`, from the same source.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import log2
from typing import NamedTuple

US, GB = 1e-6, 1e9
USABLE = 48 / 50
"""Share of a NIC's 50e9 bytes/s that NCCL counts on: 48e9; measured on a ConnectX-7: 48.5e9 (aliyun/SimAI@cef83f9d)."""


class Hops(NamedTuple):
    """Latencies of one protocol, in seconds."""

    base: float  # Of the launch.
    inside: float  # Of a step inside a node.
    across: float  # Of a step between nodes.
    across_alone: float  # Of a step between nodes with one rank per node.


RING = {
    "LL": Hops(6.6 * US, 1.0 * US, 2.7 * US, 5.0 * US),
    "LL128": Hops(14 * US, 1.9 * US, 4.0 * US, 8.5 * US),
    "SIMPLE": Hops(8.4 * US, 3.4 * US, 14 * US, 14 * US),
}
HOP = RING["SIMPLE"].across  # Seconds of a step between nodes over InfiniBand.

TREE = {
    "LL": Hops(6.8 * US, 0.6 * US, 5.0 * US, 5.0 * US),
    "LL128": Hops(14 * US, 1.25 * US, 8.5 * US, 8.5 * US),
    "SIMPLE": Hops(8.4 * US, 4.0 * US, 14 * US, 14 * US),
}
NVLS_TREE = Hops(25 * US, 0.0, 14 * US, 14 * US)

TREE_RATES = {
    # (share of the node's network, largest bytes/s) on two nodes, then on more.
    "LL": ((9.3 / 48, 16.6 * GB), (4.9 / 48, 8.7 * GB)),
    "LL128": ((31.2 / 48, 124.8 * GB), (17.6 / 48, 98.6 * GB)),
    "SIMPLE": ((35.2 / 48, 140.8 * GB), (18.77 / 48, 122.4 * GB)),
}
NVLS_RATES = {4: (40 / 48, 20 / 48), 8: (33.33 / 48, 20 / 48)}
"""Shares of the node's network by ranks per node, on two nodes and on more; NCCL has the algorithm only for these."""

REACHED = ((8 << 20, 0.68), (16 << 20, 0.79), (32 << 20, 0.87))
"""Share of the ring's bandwidth that measured all-gathers and reduce-scatters reach by bytes per rank (same source)."""


REACHED_ALONE = 46.6 / 48
"""The same with one rank per node, whose ring has no link inside a node: 0.96 of 48.5e9 bytes/s (aliyun/SimAI@cef83f9d,
``nic_ratio.csv``, 'Multi 16' to 'Multi 64' from 2 GiB on)."""


class Algorithm(NamedTuple):
    """The cost of one algorithm and protocol."""

    latency: float  # Seconds before the first byte.
    bandwidth: float  # Bytes of the buffer per second.


def reached(size: float, inside: int) -> float:
    """Share of the modelled bandwidth that is reached with ``size`` bytes per rank.

    It is interpolated linearly in the logarithm of the bytes.
    """
    if inside == 1:
        return REACHED_ALONE
    first, last = REACHED[0], REACHED[-1]
    if size <= first[0]:
        return first[1]
    for (low, low_share), (high, high_share) in pairwise(REACHED):
        if size <= high:
            return low_share + (high_share - low_share) * log2(size / low) / log2(high / low)
    return last[1]


def rings(nodes: int, inside: int, rate: float, passes: int, *, hop: float | None = None) -> Iterator[Algorithm]:
    """The rings: each rank passes on every part but its own, once for a gather or scatter and twice for an all-reduce.

    ``rate`` is the bytes/s of a node's NICs together, ``hop`` the seconds of a step between nodes.
    """
    ranks = nodes * inside
    whole = ranks / (ranks - 1) / passes
    rates = {"LL": min(rate / 2, (39 if nodes == 2 else 20.4) * GB), "LL128": min(0.92 * rate, 293.6 * GB)}
    for protocol, hops in RING.items():
        across = hop or (hops.across_alone if inside == 1 else hops.across)
        steps = (ranks - nodes) * hops.inside + (nodes - 1) * across
        yield Algorithm(hops.base + passes * steps, whole * rates.get(protocol, rate))


def trees(nodes: int, inside: int, rate: float, *, sharp: bool, hop: float | None = None) -> Iterator[Algorithm]:
    """The trees of an all-reduce, up and down; with NVLink SHARP also the one that reduces inside the switches."""
    depth, more = log2(nodes), int(nodes > 2)
    for protocol, hops in TREE.items():
        share, largest = TREE_RATES[protocol][more]
        steps = 2 * ((inside - 1) * hops.inside + depth * (hop or hops.across))
        yield Algorithm(hops.base + steps, min(share * rate, largest))
    if sharp and inside in NVLS_RATES:
        yield Algorithm(NVLS_TREE.base + 2 * depth * (hop or NVLS_TREE.across), NVLS_RATES[inside][more] * rate)
