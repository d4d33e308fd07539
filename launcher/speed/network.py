"""The links between the GPUs of a run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The links of one GPU.

    Attributes:
        capability: The GPU's compute capability, by which a measured table is chosen.
        link_bandwidth: Bytes a second of one GPU, one way, to the others of its domain.
        domain: GPUs of a run that share one NVLink domain.
        network_bandwidth: Bytes a second of one GPU's share of its node's network, one way.
    """

    capability: float
    link_bandwidth: float
    domain: int
    network_bandwidth: float


def network_of(spec: RunSpec) -> Network | None:
    """The links of a run; None where they are unknown."""
    hardware, cluster = spec.hardware, spec.cluster
    outside = cluster.network_bandwidth or hardware.network_bandwidth or (1.0 if cluster.nodes == 1 else None)
    if hardware.link_bandwidth is None or outside is None:
        return None
    linked = hardware.link_gpus or 1
    domain = linked if linked > cluster.gpus_per_node else cluster.gpus_per_node
    return _network(hardware.effective_capability, hardware.link_bandwidth, min(domain, spec.gpus), outside)


@lru_cache(maxsize=256)
def _network(capability: float, link: float, domain: int, outside: float) -> Network:
    return Network(capability=capability, link_bandwidth=link, domain=domain, network_bandwidth=outside)
