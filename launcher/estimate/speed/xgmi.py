"""Collectives of AMD's Instinct cards: constants, for which no table of an open licence is at hand.

Source: AMD-AGI/Primus@fd1eeabb (MIT), ``collective_args.py``, for MI300X: the shares, the fixed times and the loss by
node. Inside a node each GPU has one xGMI link to every other, so that a group uses those to its own ranks alone (AMD
Instinct MI300X platform data sheet).
"""

from __future__ import annotations

from launcher.estimate.speed.network import Group, Network

COLLECTIVE, MESSAGE = 0.70, 0.80
"""Shares of a link's bandwidth that collectives and messages reach."""

MESH = 0.88
"""What is left of it in an all-to-all over the mesh."""

FIXED = {"all_reduce": 200e-6, "all_to_all": 150e-6, "all_gather": 100e-6, "reduce_scatter": 100e-6, "send": 0.0}
"""Seconds of a collective of no bytes. A gather and a scatter, not given, count as the halves of an all-reduce."""

NODE = 0.04
"""Each further node takes this much of the bandwidth of one."""


def seconds(kind: str, size: float, group: Group, network: Network) -> float:
    """Seconds of one collective, by the arguments of :func:`launcher.estimate.speed.collectives.seconds`."""
    nodes, inside, ranks = group.domains, group.inside, group.ranks
    peers = max(1, network.link_gpus - 1)
    share = MESSAGE if kind == "send" else COLLECTIVE
    within = share * network.link_bandwidth * min(1.0, max(1, inside - 1) / peers)
    across = share * (network.network_bandwidth or 0.0) / (1 + NODE * (nodes - 1))
    if kind == "send":
        return FIXED[kind] + size / (within if nodes == 1 else across)
    if kind == "all_to_all":
        inner = size * (inside - 1) / ranks / (within * MESH)
        return FIXED[kind] + (inner if nodes == 1 else max(inner, size * (ranks - inside) / ranks / across))
    moved = size * (ranks - 1) / ranks * (2 if kind == "all_reduce" else 1)
    return FIXED[kind] + moved / (within if nodes == 1 else min(within, across * inside) if inside > 1 else across)
