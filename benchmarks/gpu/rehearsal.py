"""Every run of the matrix with a tiny model on the CPU, which only shows that a row starts."""

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
_ALSO: dict[str, dict[str, object]] = {
    "model=mixtral": {"model.moe_intermediate_size": 128},
    "model=qwen3_30b": {"model.moe_intermediate_size": 128},
    "model=granite": {"model.moe_intermediate_size": 128},
    "model=minimax": {"model.moe_intermediate_size": 128, "model.extra.rotary_dim": 8},
    "model=llama4": {"model.moe_intermediate_size": 128},
    "model=deepseek": {"model.num_key_value_heads": 4},
    "model=gpt2": {"model.num_key_value_heads": 4},
    "model=nemotron3": {"model.num_hidden_layers": 6},
}
"""Sizes of families that keep some of theirs equal, or a layer of each kind."""


def rehearsed(point: Point) -> Point:
    """The point's run with the same engine and settings, in a size for any CPU."""
    own = next((more for start, more in _ALSO.items() if any(w.startswith(start) for w in point.overrides)), {})
    sizes = {**_TINY, **own}
    if any(word.startswith("checkpointing.layers=") for word in point.overrides):
        sizes["checkpointing.layers"] = 1
    kept = [word for word in point.overrides if word.partition("=")[0] not in sizes]
    return replace(point, overrides=(*kept, *(f"{key}={value}" for key, value in sizes.items())))
