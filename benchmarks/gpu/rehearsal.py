"""Every run of the matrix with a tiny model on the CPU: it shows that a row starts, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.gpu.matrix import Point

_TINY: dict[str, object] = {
    "model.hidden_size": 64,
    "model.intermediate_size": 128,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 4,
    "model.num_key_value_heads": 2,
    "model.head_dim": 16,
    "model.vocab_size": 256,
    "model.max_position_embeddings": 128,
    "train.sequence_length": 64,
    "hardware": "cpu",
}
_EXPERTS: dict[str, object] = {"model.moe_intermediate_size": 128}


def rehearsed(point: Point) -> Point:
    """The point's run, its engine and settings the same, in a size for any processor."""
    experts = any(word.startswith(("model=mixtral", "model=qwen3_30b", "model=granite")) for word in point.overrides)
    sizes = {**_TINY, **_EXPERTS} if experts else _TINY
    kept = [word for word in point.overrides if word.partition("=")[0] not in sizes]
    return replace(point, overrides=(*kept, *(f"{key}={value}" for key, value in sizes.items())))
