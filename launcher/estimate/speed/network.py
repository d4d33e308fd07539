"""The links of a run's GPUs, and how many ranks of a group share the fastest of them.

Ranks are laid out in Megatron's order ``tp-cp-ep-dp-pp``, so that those of a group lie a stride apart.
"""

from functools import lru_cache
from typing import NamedTuple

from launcher.estimate.speed.card import is_amd
from launcher.spec import HardwareSpec, RunSpec

_PCIE = 100e9
"""Bytes/s one way below which a link is PCIe or a bridge of two cards: PCIe 5.0 x16 has 64e9, NVLink 2 150e9."""

_LARGEST_NODE = 16
"""GPUs of the largest NVLink domain inside one node (NVIDIA DGX-2); a larger one is that of a rack (GB200 NVL72)."""


class Group(NamedTuple):
    """The ranks of one collective."""

    ranks: int  # All of them.
    inside: int  # Those of them that share one domain, NVLink's or a node; 1: each is on a node of its own.

    @property
    def domains(self) -> int:
        """The domains that the group lies on."""
        return -(-self.ranks // self.inside)


class Network(NamedTuple):
    """The links that the time of a collective depends on."""

    # The measured table that its links resemble: ``nvlink3`` (A100), ``nvlink4`` (H100), ``nvlink5`` (B200), or
    # ``xgmi`` for the constants of AMD's.
    links: str
    link_bandwidth: float  # Bytes/s of one GPU, one way, to the others of its domain.
    link_gpus: int  # GPUs of one such domain.
    gpus_per_node: int  # GPUs of one node.
    network_bandwidth: float | None  # Bytes/s of one GPU's share of its node's network, one way; None is unknown.
    # Bytes/s, one way, by which GPUs of one node talk that share no domain; None is unknown.
    pcie_bandwidth: float | None = None
    # Seconds of one step of a ring between nodes, by any protocol; None is InfiniBand's.
    network_latency: float | None = None

    @property
    def span(self) -> int:
        """GPUs that reach one another without the network: of a node, or of a rack on one NVLink."""
        return max(self.gpus_per_node, self.link_gpus) if self.link_gpus > _LARGEST_NODE else self.gpus_per_node


def network_of(spec: RunSpec) -> Network | None:
    """The links of a run; None where its card's are unknown, or the network of a run on several nodes."""
    cluster = spec.cluster
    own, latency = cluster.network_bandwidth, cluster.network_latency
    return _network(spec.hardware, cluster.nodes, cluster.gpus_per_node, own, latency)


@lru_cache(maxsize=256)
def _network(
    hardware: HardwareSpec, nodes: int, gpus_per_node: int, own: float | None, latency: float | None
) -> Network | None:
    link, network = hardware.link_bandwidth, hardware.network_bandwidth if own is None else own
    if link is None:
        return None
    found = Network(
        links=_links(hardware.title, link, hardware.compute_capability),
        link_bandwidth=float(link),
        link_gpus=hardware.link_gpus or gpus_per_node,
        gpus_per_node=gpus_per_node,
        network_bandwidth=None if network is None else float(network),
        pcie_bandwidth=None if hardware.pcie_bandwidth is None else float(hardware.pcie_bandwidth),
        network_latency=latency,
    )
    return None if nodes * gpus_per_node > found.span and network is None else found


def _links(title: str, link_bandwidth: float, capability: float | None) -> str:
    """The table that stands for a card's links: of its own generation, and over PCIe the one without NVLink SHARP."""
    if is_amd(title):
        return "xgmi"
    if link_bandwidth < _PCIE:
        return "nvlink3"
    if capability is None:
        return "nvlink3" if link_bandwidth < 400e9 else "nvlink4" if link_bandwidth < 800e9 else "nvlink5"
    return "nvlink3" if capability < 9 else "nvlink4" if capability < 10 else "nvlink5"


@lru_cache(maxsize=4096)
def group_of(ranks: int, stride: int, network: Network) -> Group:
    """A group whose ranks lie ``stride`` GPUs apart, by how many of them share a node or a rack's domain.

    A group that does not fill whole domains is counted as spread evenly over those that it touches.
    """
    shared = max(1, network.span // stride)
    return Group(ranks, ranks) if ranks <= shared else Group(ranks, -(-ranks // -(-ranks // shared)))
