"""Megatron-LM's ``megatron/training/theoretical_memory_usage.py``, re-implemented."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.estimators import _run
from launcher.spec import ModelSpec, RunSpec

SOURCE = (
    "re-implemented from the published form of Megatron-LM, megatron/training/theoretical_memory_usage.py as in"
    " megatron-core 0.19.2: weights and optimizer of the most loaded shard, activations of the first stage, with"
    " sequence parallelism and selective recomputation by one formula and otherwise by the other"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Parameters of the most loaded shard: not those of experts, and those of experts."""

    dense: float
    expert: float


def predict(spec: RunSpec) -> int | None:
    """Bytes of one GPU; None beyond ZeRO-1 (the distributed optimizer), for adapters, offload or fp32."""
    sharded = _run.zero_stage(spec) > 1
    if sharded or not _run.trains_everything(spec) or spec.precision.compute == "fp32":
        return None
    with_sequence = spec.parallel.sequence and spec.checkpointing.mode == "selective"
    activations = activations_with_sequence_parallelism(spec) if with_sequence else activations_without(spec)
    return round(states(spec) + activations)


def states(spec: RunSpec) -> float:
    """18 bytes a parameter, or ``6 + 12 / d`` with the distributed optimizer, d data parallel copies."""
    shard, parallel = _shard(spec), spec.parallel
    tensor = parallel.expert_tensor or parallel.tensor
    copies = spec.gpus // (tensor * parallel.expert * parallel.pipeline)
    return shard.dense * _bytes(spec, spec.data_degree) + shard.expert * _bytes(spec, copies)


def _bytes(spec: RunSpec, copies: int) -> float:
    return 6 + 12 / copies if spec.zero.stage == 1 else 18


def _shard(spec: RunSpec) -> Shard:
    """A stage's part of all layers and of the last norm, and one table; both tables where there is one stage."""
    model, parallel = spec.model, spec.parallel
    gate = 3 / 2 if model.gated else 1
    size = 1 if model.normalization == "rmsnorm" else 2
    norm, hidden = size * model.hidden_size, model.hidden_size
    sparse = model.num_hidden_layers - model.first_dense_layers if model.num_experts else 0
    dense = model.num_hidden_layers - sparse
    shared = 2 * hidden * model.num_shared_experts * model.moe_intermediate_size * gate
    attention = _attention(model, size)
    split = dense * (attention + 2 * hidden * model.intermediate_size * gate) + sparse * (attention + shared)
    router = hidden * model.num_experts + (model.num_experts if model.mlp_bias else 0)
    copied = model.num_hidden_layers * 2 * norm + sparse * router + norm
    routed = sparse * 2 * hidden * model.moe_intermediate_size * model.num_experts * gate
    tables = 2 if parallel.pipeline == 1 and not model.tie_word_embeddings else 1
    table = hidden * _run.vocabulary(spec) * tables
    return Shard(
        dense=(split / parallel.pipeline + table) / parallel.tensor + copied / parallel.pipeline,
        expert=routed / parallel.pipeline / ((parallel.expert_tensor or parallel.tensor) * parallel.expert),
    )


def _attention(model: ModelSpec, norm: int) -> float:
    """``2 h^2 (1 + g / a) q / h``, or the projections of latent attention."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    if not model.kv_lora_rank:
        return 2 * hidden * model.query_size * (1 + model.key_value_heads / heads)
    query = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim)
    first = model.q_lora_rank * (hidden + query + norm) if model.q_lora_rank else hidden * query
    expanded = heads * (model.qk_nope_head_dim + model.v_head_dim)
    latent = model.kv_lora_rank * (hidden + expanded + norm) + hidden * model.qk_rope_head_dim
    return first + latent + heads * model.v_head_dim * hidden


def activations_with_sequence_parallelism(spec: RunSpec) -> float:
    """``s b h (18 + 4 f / h)`` a layer, the embedding's input and dropout, on one stage also the output; over t."""
    model, tokens = spec.model, _tokens(spec)
    layer = tokens * model.hidden_size * (18 + 4 * model.intermediate_size / model.hidden_size)
    total = (layer * model.num_hidden_layers + _embedding(spec)) * _in_flight(spec)
    if spec.parallel.pipeline == 1:
        total += tokens * 4 * (model.hidden_size + _run.vocabulary(spec))
    return total / spec.parallel.tensor


def activations_without(spec: RunSpec) -> float:
    """``s b h (10 + 24 / t)`` a layer, the embedding's input and dropout, on one stage also the output; 5 % more."""
    model, tokens, tensor = spec.model, _tokens(spec), spec.parallel.tensor
    layer = tokens * model.hidden_size * (10 + 24 / tensor)
    total = (layer * model.num_hidden_layers + _embedding(spec)) * _in_flight(spec)
    if spec.parallel.pipeline == 1:
        total += 2 * (tokens * _run.vocabulary(spec) / tensor + tokens * model.hidden_size)
    return total * 1.05


def _tokens(spec: RunSpec) -> int:
    return spec.sequence_length * spec.micro_batch_size


def _embedding(spec: RunSpec) -> float:
    return (8 + spec.model.hidden_size) * _tokens(spec) * spec.parallel.pipeline


def _in_flight(spec: RunSpec) -> float:
    """Interleaving's penalty ``1 + (p - 1) / (p v)``, or at most one micro-batch a stage of those there are."""
    stages, chunks = spec.parallel.pipeline, spec.parallel.virtual_pipeline
    if chunks > 1:
        return 1 + (stages - 1) / (stages * chunks)
    return min(1, spec.gradient_accumulation / stages)
