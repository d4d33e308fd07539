"""Parameter-efficient fine-tuning: an adapter needs targets, a base to adapt and axes that leave its base whole."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit

_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a Llama block, which are also the default of conf/adapter/_base.yaml."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """An adapter of nothing, or of a base that is cut up."""
    adapter = spec.adapter
    if adapter.name == "none":
        return
    if not adapter.targets:
        rule = f"{adapter.name} needs at least one module to adapt"
        yield ConfigError("adapter.targets", [], rule, [edit.override("adapter.targets", _MODULES)])
    for axis in ("tensor", "pipeline", "expert"):
        degree = getattr(spec.parallel, axis)
        if degree > 1:
            rule = f"adapter={adapter.name} wraps whole linear layers with peft; {axis} parallel ranks hold parts"
            yield ConfigError(f"parallel.{axis}", degree, rule, [f"parallel.{axis}=1", "adapter=none"])


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """An adapter on random weights."""
    if spec.adapter.name != "none" and spec.model.weights is None and spec.save.load is None:
        rule = f"adapter={spec.adapter.name} trains beside frozen weights, and these are fresh: name a checkpoint"
        yield ConfigError("model.weights", None, rule, ["model.weights=path/to/model", "adapter=none"])
