"""Words of a file's columns as overrides: what is sharded, what is computed again, in which format."""

from __future__ import annotations

import re

type Settings = dict[str, object]


class LeftOutError(Exception):
    """A row that cannot be expressed; its text is the reason."""


PRECISIONS: dict[str, tuple[str, ...]] = {
    "bf16": ("precision=bf16",),
    "fp16": ("precision=fp16",),
    "bf16/fp16 amp": ("precision=bf16",),
    "fp8": ("precision=fp8", "precision.recipe=delayed"),
    "fp8-cs": ("precision=fp8", "precision.recipe=tensorwise"),
    "fp8-mx": ("precision=fp8", "precision.recipe=mxfp8"),
    "nvfp4": ("precision=nvfp4",),
    "mxfp8": ("precision=fp8", "precision.recipe=mxfp8"),
}
"""Words of the column ``precision``; bf16 and fp16 have the same rate on every card that has both."""

_MODULES = {
    "layernorm": "layernorm",
    "norm": "layernorm",
    "act": "moe_act",
    "moe_act": "moe_act",
    "moe": "moe",
    "mlp": "mlp",
    "core_attn": "core_attn",
    "core attention": "core_attn",
    "mla_up_proj": "mla_up_proj",
}
"""Megatron-Core's names of what ``--recompute-modules`` computes again."""

_REST = "(?:ZeRO-3 with full offload|ZeRO-3 \\+ CPU AdamW offload)"
_STAGES = (
    (r"0$", 0),
    (r"ZeRO-1( over all)?$|distributed optimizer \(ZeRO-1\)$|sharding stage 1 over \d+$", 1),
    (r"ZeRO-1 within \d+ ranks$", 1),
    (r"ZeRO-2$|sharding stage 2 over \d+$|FSDP SHARD_GRAD_OP \(ZeRO-2\)$", 2),
    (r"ZeRO-2, optimizer offload", 2),
    (r"ZeRO-3$|FSDP FULL_SHARD \(ZeRO-3\)$|Megatron-FSDP$|FSDP2?$|ZeRO-3, optimizer offload", 3),
    (r"FSDP2 over \d+$|FSDP within \d+, replicated outside$", 3),
    (rf"{_REST}$", 3),
)


def precision(word: str) -> tuple[str, ...]:
    """The choice of number formats.

    Raises:
        LeftOutError: The word is blank, or a format that is not modelled.
    """
    if word not in PRECISIONS:
        raise LeftOutError(f"no such precision: {word}" if word else "the precision is not stated")
    return PRECISIONS[word]


def sharding(word: str, data: int) -> Settings:
    """ZeRO's stage, the ranks among which states are sharded where these are not all, and what is offloaded."""
    stage = next((stage for pattern, stage in _STAGES if re.match(pattern, word)), None)
    if stage is None:
        raise LeftOutError(f"no such sharding: {word}" if word else "what is sharded is not stated")
    settings: Settings = {"zero.stage": stage}
    if (within := re.search(r"within (\d+)|FSDP2 over (\d+)", word)) is not None:
        group = int(within[1] or within[2])
        if group < data:
            settings["parallel.replicate"] = data // group
    full, cpu = "full offload" in word, "CPU AdamW" in word
    if full or cpu or "optimizer offload Y" in word:
        settings["zero.offload_optimizer"] = "cpu"
    if full or "parameter offload Y" in word:
        settings["zero.offload_parameters"] = "cpu"
    return settings


def recompute(word: str, stages: int) -> Settings:
    """What the backward pass computes again; ``stages`` share the layers of the model."""
    if word in ("none", "full"):
        return {"checkpointing.mode": word}
    if word == "op":
        return {"checkpointing.mode": "selective"}
    if (some := re.fullmatch(r"full on (\d+) layers", word)) is not None:
        layers = max(1, round(int(some[1]) / stages))
        return {"checkpointing.mode": "full", "checkpointing.method": "block", "checkpointing.layers": layers}
    if word == "selective []":
        return {"checkpointing.mode": "none"}
    named = re.sub(r"^selective\b|[()]", "", word).strip()
    names = [part.strip() for part in named.split(",") if part.strip()]
    if not names or any(name not in _MODULES for name in names):
        raise LeftOutError(f"no such recomputation: {word}" if word else "what is computed again is not stated")
    modules = ",".join(_MODULES[name] for name in names)
    return {"checkpointing.mode": "selective", "checkpointing.modules": f"[{modules}]"}
