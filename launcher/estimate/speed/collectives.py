"""Time of a collective that runs alone: in one domain by measured tables, across nodes by NCCL's own cost model.

Sizes are bytes of a rank's whole buffer, as in nccl-tests. Inside a domain (NVLink, or a node over PCIe) the tables of
``collectives.json``, measured on A100, H100 and B200, are interpolated in the logarithms of size and time; a card with
other links takes the table of its generation, with all but the latency scaled by bandwidth. The file is written by
``python -m benchmarks.speed.fits.collectives --data DIR``.
"""

from functools import cache, lru_cache
from itertools import pairwise
from math import exp2, log2
from pathlib import Path
from typing import Literal, NamedTuple

from launcher.base import files
from launcher.estimate.speed import tuner
from launcher.estimate.speed.network import Group, Network, group_of

__all__ = ["TABLES", "Group", "Kind", "Network", "group_of", "seconds"]
TABLES = Path(__file__).with_name("collectives.json")
Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send", "broadcast"]
SEND = 0.8
"""Share of a NIC's bandwidth that a message between nodes reaches (AMD-AGI/Primus@fd1eeabb, ``collective_args.py``)."""

EXCHANGE_LATENCY = ((2, 37e-6), (4, 42e-6), (8, 60e-6), (16, 98e-6), (32, 290e-6))
"""Seconds before an all-to-all's first byte, by nodes of 8 H100 (meta-pytorch/autoparallel@a54c2529)."""

EXCHANGE_LOSS = 0.44  # An all-to-all over n nodes reaches ``1 - 0.44/n`` of the NICs' bandwidth (same source).
XGMI_COLLECTIVE, XGMI_MESSAGE = 0.70, 0.80
"""Shares of a link's bandwidth that collectives and messages reach on AMD's Instinct cards: MI300X figures of
AMD-AGI/Primus@fd1eeabb (MIT), ``collective_args.py``."""

XGMI_MESH = 0.88  # Further factor for an all-to-all over the mesh.
XGMI_FIXED = {"all_reduce": 200e-6, "all_to_all": 150e-6, "all_gather": 100e-6, "reduce_scatter": 100e-6, "send": 0.0}
"""Seconds of an empty collective. All-gather and reduce-scatter are not given: each counts as half an all-reduce."""

XGMI_NODE = 0.04  # Loss of bandwidth per further node, relative to one node.


class Table(NamedTuple):
    """The measured collectives of one card."""

    least: float  # Bytes of the first size; each next one is twice as large.
    link_bandwidth: float  # Bytes/s of one GPU of that card, one way.
    ranks: list[int]  # The measured numbers of ranks, ascending.
    times: dict[tuple[str, int], list[float]]  # log2 of the seconds at each size, by kind and ranks.


@lru_cache(maxsize=65536)
def seconds(kind: Kind, size: float, group: Group, network: Network) -> float:
    """Seconds of one collective; ``size`` is the bytes of a rank's whole buffer.

    A send goes from one rank to another. A broadcast counts as a ring that passes the whole buffer over each link,
    where an all-gather passes all but a rank's own part.
    """
    if group.ranks < 2 or size <= 0:
        return 0.0
    if kind == "broadcast":
        return seconds("all_gather", size, group, network) * group.ranks / (group.ranks - 1)
    if network.links == "xgmi":
        return _xgmi_seconds(kind, size, group, network)
    if group.domains == 1:
        return _inside(kind, size, group.ranks, _link(group, network), network.links)
    if kind == "send":
        latency = tuner.RING["SIMPLE"].base + (network.network_latency or tuner.HOP)
        return latency + size / (SEND * _nic(network))
    return _exchange(size, group, network) if kind == "all_to_all" else _across(kind, size, group, network)


def _inside(kind: str, size: float, ranks: int, bandwidth: float, links: str) -> float:
    """Seconds in one domain; a send counts as one direction of an exchange between two ranks."""
    if kind == "send":
        return _measured(links, "all_gather", 2, 2 * size, bandwidth)
    counts = _tables()[links].ranks
    if ranks > counts[-1]:
        return _more(kind, size, ranks, bandwidth, links)
    low = max(count for count in counts if count <= ranks)
    high = min(count for count in counts if count >= ranks)
    below = _measured(links, kind, low, size, bandwidth)
    if low == high:
        return below
    share = (ranks - low) / (high - low)
    return below + share * (_measured(links, kind, high, size, bandwidth) - below)


def _more(kind: str, size: float, ranks: int, bandwidth: float, links: str) -> float:
    """Seconds with more ranks in a domain than were measured (NVL72): the same bandwidth, one more step per rank.

    A step is the latency per rank between the two largest measured numbers of ranks; it was not measured beyond.
    """
    table = _tables()[links]
    fewer, most = table.ranks[-2:]
    step = max(0.0, exp2(table.times[kind, most][0]) - exp2(table.times[kind, fewer][0])) / (most - fewer)
    wider = (1 - 1 / ranks) / (1 - 1 / most)
    return _measured(links, kind, most, size, bandwidth) * wider + step * (ranks - most)


def _measured(links: str, kind: str, ranks: int, size: float, bandwidth: float) -> float:
    """The table's seconds at a size; for slower or faster links all but the latency is scaled."""
    table = _tables()[links]
    times = table.times[kind, ranks]
    place = log2(size / table.least)
    last = len(times) - 1
    if place >= last:
        found = exp2(times[last] + place - last)
    elif place <= 0:
        return exp2(times[0])
    else:
        index = int(place)
        found = exp2(times[index] + (place - index) * (times[index + 1] - times[index]))
    latency = exp2(times[0])
    return latency + (found - latency) * table.link_bandwidth / bandwidth


def _across(kind: str, size: float, group: Group, network: Network) -> float:
    """Seconds of the fastest ring or tree, at least those of the part inside a domain alone.

    The NICs of a node's GPUs in the group work together; a ring that passes through every GPU is no faster than the
    links inside. The share of NCCL's bandwidth that rings reach is used for trees as well.
    """
    nodes, inside = group.domains, group.inside
    rate = tuner.USABLE * _nic(network) * inside
    reached = tuner.reached(size / group.ranks, inside)
    if inside > 1:
        rate = min(rate, _ring_bandwidth(network.links, inside, _link(group, network)) / reached)
    ways = list(tuner.rings(nodes, inside, rate, 2 if kind == "all_reduce" else 1, hop=network.network_latency))
    if kind == "all_reduce":
        # From Hopper on, the switches of machines with NVSwitch do the sums (NVLink SHARP).
        sharp = network.links != "nvlink3" and network.link_gpus >= 8
        ways += tuner.trees(nodes, inside, rate, sharp=sharp, hop=network.network_latency)
    found = min(way.latency + size / (way.bandwidth * reached) for way in ways)
    return found if inside == 1 else max(found, _inside(kind, size, inside, _link(group, network), network.links))


def _exchange(size: float, group: Group, network: Network) -> float:
    """Seconds of an all-to-all across nodes: a rank's NIC carries what leaves the node while links carry the rest."""
    nodes, inside, ranks = group.domains, group.inside, group.ranks
    leaves = size * (ranks - inside) / ranks
    found = _exchange_latency(nodes) * (network.network_latency or tuner.HOP) / tuner.HOP + leaves / (
        tuner.USABLE * _nic(network) * (1 - EXCHANGE_LOSS / nodes)
    )
    if inside == 1:
        return found
    return max(found, _inside("all_to_all", size * inside / ranks, inside, _link(group, network), network.links))


def forwarded(size: float, domains: int, usable: float, network: Network) -> float:
    """Seconds until a rank's bytes for other domains have left its NIC, one message per domain (DeepEP, HybridEP)."""
    return _exchange_latency(domains) * (network.network_latency or tuner.HOP) / tuner.HOP + size / (
        usable * _nic(network)
    )


def _exchange_latency(nodes: int) -> float:
    """Seconds before the first byte, interpolated linearly between the source's figures and extrapolated beyond."""
    pairs = EXCHANGE_LATENCY
    for (low, first), (high, last) in pairwise(pairs):
        if nodes <= high or high == pairs[-1][0]:
            return first + (last - first) * (nodes - low) / (high - low)
    return pairs[0][1]


def _nic(network: Network) -> float:
    if network.network_bandwidth is None:
        raise ValueError("a group that leaves its node needs the network's bandwidth; network_of gives None without it")
    return network.network_bandwidth


def _link(group: Group, network: Network) -> float:
    """The bandwidth inside: PCIe's for ranks of one node that share no NVLink domain."""
    if group.inside > network.link_gpus and network.pcie_bandwidth is not None:
        return min(network.link_bandwidth, network.pcie_bandwidth)
    return network.link_bandwidth


@cache
def _ring_bandwidth(links: str, ranks: int, bandwidth: float) -> float:
    """Bytes/s that pass each link of a domain in the largest measured all-gather."""
    table = _tables()[links]
    size = table.least * exp2(len(table.times["all_gather", 2]) - 1)
    return size * (1 - 1 / ranks) / _inside("all_gather", size, ranks, bandwidth, links)


@cache
def _tables() -> dict[str, Table]:
    content = files.own_json(TABLES)
    return {
        links: Table(
            least=float(content["least_bytes"]),
            link_bandwidth=float(table["link_bandwidth"]),
            ranks=sorted(int(ranks) for ranks in table["microseconds"]["all_gather"]),
            times={
                (kind, int(ranks)): [log2(time * 1e-6) for time in times]
                for kind, rows in table["microseconds"].items()
                for ranks, times in rows.items()
            },
        )
        for links, table in content["tables"].items()
    }


def _xgmi_seconds(kind: str, size: float, group: Group, network: Network) -> float:
    """Seconds of one collective on AMD's Instinct cards, each with one xGMI link to every other card of its node."""
    nodes, inside, ranks = group.domains, group.inside, group.ranks
    peers = max(1, network.link_gpus - 1)
    share = XGMI_MESSAGE if kind == "send" else XGMI_COLLECTIVE
    within = share * network.link_bandwidth * min(1.0, max(1, inside - 1) / peers)
    across = share * (network.network_bandwidth or 0.0) / (1 + XGMI_NODE * (nodes - 1))
    if kind == "send":
        return XGMI_FIXED[kind] + size / (within if nodes == 1 else across)
    if kind == "all_to_all":
        inner = size * (inside - 1) / ranks / (within * XGMI_MESH)
        return XGMI_FIXED[kind] + (inner if nodes == 1 else max(inner, size * (ranks - inside) / ranks / across))
    moved = size * (ranks - 1) / ranks * (2 if kind == "all_reduce" else 1)
    return XGMI_FIXED[kind] + moved / (within if nodes == 1 else min(within, across * inside) if inside > 1 else across)
