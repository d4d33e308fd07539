"""The links between a run's GPUs, and how many ranks of a group share the fastest of them.

Ranks are laid out in Megatron's order ``tp-cp-ep-dp-pp``, so that the ranks of a group are a stride apart.
"""

from functools import lru_cache
from typing import NamedTuple

from launcher.estimate.speed.card import is_amd
from launcher.spec import HardwareSpec, RunSpec

_PCIE = 100e9
"""Bytes/s one way below which a link is PCIe or a two-card bridge: PCIe 5.0 x16 has 64e9, NVLink 2 150e9."""

_LARGEST_NODE = 16
"""GPUs of the largest NVLink domain inside one node (NVIDIA DGX-2); a larger one is that of a rack (GB200 NVL72)."""


class Group(NamedTuple):
    """The ranks of one collective."""

    ranks: int  # The number of ranks.
    inside: int  # Ranks that share one domain, of NVLink or a node; 1: each is on a different node.

    @property
    def domains(self) -> int:
        """Number of domains that the group spans."""
        return -(-self.ranks // self.inside)


class Network(NamedTuple):
    """The links that the time of a collective depends on."""

    # The measured table that stands for its links: ``nvlink3`` (A100), ``nvlink4`` (H100), ``nvlink5`` (B200), or
    # ``xgmi`` for AMD's constants.
    links: str
    link_bandwidth: float  # Bytes/s of one GPU, one way, to the others of its domain.
    link_gpus: int  # GPUs of one such domain.
    gpus_per_node: int  # GPUs of one node.
    network_bandwidth: float | None  # Bytes/s of one GPU's share of its node's network, one way; None if unknown.
    # Bytes/s, one way, between GPUs of one node that share no domain; None if unknown.
    pcie_bandwidth: float | None = None
    # Seconds of one ring step between nodes, with any protocol; None takes InfiniBand's.
    network_latency: float | None = None

    @property
    def span(self) -> int:
        """GPUs that reach one another without the network: those of a node, or of a rack on one NVLink domain."""
        return max(self.gpus_per_node, self.link_gpus) if self.link_gpus > _LARGEST_NODE else self.gpus_per_node


def network_of(spec: RunSpec) -> Network | None:
    """The links of a run; None where its card's links, or the network of a run on several nodes, are unknown."""
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
    """The table for a card's links: its own generation's, and for PCIe the one without NVLink SHARP."""
    if is_amd(title):
        return "xgmi"
    if link_bandwidth < _PCIE:
        return "nvlink3"
    if capability is None:
        return "nvlink3" if link_bandwidth < 400e9 else "nvlink4" if link_bandwidth < 800e9 else "nvlink5"
    return "nvlink3" if capability < 9 else "nvlink4" if capability < 10 else "nvlink5"


@lru_cache(maxsize=4096)
def group_of(ranks: int, stride: int, network: Network) -> Group:
    """A group whose ranks are ``stride`` GPUs apart, with how many of them share a node or a rack's domain.

    A group that does not fill whole domains counts as spread evenly over those that it touches.
    """
    shared = max(1, network.span // stride)
    return Group(ranks, ranks) if ranks <= shared else Group(ranks, -(-ranks // -(-ranks // shared)))
