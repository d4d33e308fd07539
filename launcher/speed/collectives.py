"""Time of a collective among the ranks of a group."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from launcher.speed.network import Network

type Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send", "broadcast"]


class Group(NamedTuple):
    """Ranks that take part, and how many of them share one NVLink domain."""

    ranks: int
    inside: int


def group_of(ranks: int, stride: int, network: Network) -> Group:
    """A group of ranks that lie ``stride`` apart."""
    inside = max(1, min(ranks, network.domain // max(1, stride)))
    while ranks % inside:
        inside -= 1
    return Group(ranks, inside)


@lru_cache(maxsize=65536)
def seconds(kind: Kind, size: float, group: Group, network: Network) -> float:
    """Seconds of one collective.

    Args:
        kind: The collective.
        size: Bytes of the whole buffer, as nccl-tests counts them.
        group: The ranks.
        network: The links.
    """
    ranks, inside = group
    if ranks == 1 or not size:
        return 0.0
    nodes = ranks // inside
    if kind == "send":
        bandwidth = network.link_bandwidth if inside > 1 else network.network_bandwidth
        return 10e-6 + size / (0.8 * bandwidth)
    factor = {"all_reduce": 2.0}.get(kind, 1.0) * (ranks - 1) / ranks
    if nodes == 1:
        reached = 0.78 * network.link_bandwidth * size / (size + 12e6)
        return 12e-6 + factor * size / max(reached, 1e9)
    bandwidth = min(0.8 * network.network_bandwidth * inside, 0.78 * network.link_bandwidth)
    if kind == "all_to_all":
        bandwidth = 0.8 * network.network_bandwidth * ranks / (ranks - inside)
    return 20e-6 + 20e-6 * nodes + factor * size / bandwidth
