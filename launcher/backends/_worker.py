"""Settings that no engine's worker honours yet, since they share code: kinds of recomputation, a fused loss."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.errors import ConfigError
from launcher.spec import RunSpec


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Settings that ``launcher.worker.model.recompute`` and ``launcher.worker.model.language_model`` would drop."""
    settings = spec.checkpointing
    if settings.mode == "full" and settings.method == "uniform" and (settings.layers or 1) > 1:
        rule = "each layer is a group of its own: transformers calls its layers one by one"
        way_out = ["checkpointing.layers=1", "checkpointing.method=block"]
        yield ConfigError("checkpointing.layers", settings.layers, rule, way_out)
    if settings.modules:
        rule = "what is kept is chosen by operation, not by module: every second matrix product, and attention"
        yield ConfigError("checkpointing.modules", list(settings.modules), rule, ["checkpointing.modules=[]"])
    if spec.train.loss == "fused":
        rule = "no fused cross entropy is installed; the chunked one also never holds all logits"
        yield ConfigError("train.loss", "fused", rule, ["train.loss=chunked", "train.loss=full"])
