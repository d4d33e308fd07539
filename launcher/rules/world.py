"""The world and the degrees that are laid out in it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import gcd

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit

_DEGREES = ("tensor", "pipeline", "context", "ulysses")
_LARGEST_NODE = 8
"""GPUs of the usual node (HGX boards carry 8): a way out asks for more nodes rather than for larger ones."""


def ranks(spec: RunSpec) -> str:
    """The world as a person says it: ``"8 GPUs"``, or ``"2 CPU ranks"``."""
    noun = "GPU" if spec.hardware.device == "cuda" else "CPU rank"
    return f"{spec.gpus} {noun}{'s' if spec.gpus != 1 else ''}"


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """The ranks of one model copy must divide the world; so must those that hold its experts."""
    if not _divides(spec):
        yield _indivisible(spec)


def _divides(spec: RunSpec) -> bool:
    return spec.gpus % spec.model_parallel == 0


def _indivisible(spec: RunSpec) -> ConfigError:
    used = [name for name in _DEGREES if getattr(spec.parallel, name) > 1]
    largest = max(used, key=lambda name: int(getattr(spec.parallel, name)))
    product = " x ".join(f"{name} {getattr(spec.parallel, name)}" for name in used)
    equals = f" = {spec.model_parallel}" if len(used) > 1 else ""
    return ConfigError(
        f"parallel.{largest}",
        getattr(spec.parallel, largest),
        f"the ranks of one model copy ({product}{equals}) must divide the {ranks(spec)}",
        chain(_smaller_degrees(spec, used), _larger_worlds(spec)),
    )


def _smaller_degrees(spec: RunSpec, used: list[str]) -> Iterator[str]:
    for name in sorted(used, key=lambda name: -int(getattr(spec.parallel, name))):
        yield from edit.nearest(spec, f"parallel.{name}", edit.divisors(spec.gpus), _divides, limit=3)


def _larger_worlds(spec: RunSpec) -> Iterator[str]:
    per_node, nodes = spec.cluster.gpus_per_node, spec.cluster.nodes
    larger_nodes = range(per_node + 1, _LARGEST_NODE + 1)
    step = spec.model_parallel // gcd(spec.model_parallel, per_node)
    yield from edit.nearest(spec, "cluster.gpus_per_node", larger_nodes, _divides, limit=1)
    yield from edit.nearest(spec, "cluster.nodes", [(nodes // step + 1) * step], _divides, limit=1)
