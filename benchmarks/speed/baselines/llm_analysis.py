"""llm-analysis 0.2.2, ``LLMAnalysis.training``, re-implemented."""

from __future__ import annotations

from benchmarks.speed.baselines import _run
from benchmarks.speed.row import Row
from launcher.spec import RunSpec

EFFICIENCY = 0.5
"""Of the peak: its README, "literature reports up to 0.5 for large scale model training"."""

SOURCE = (
    "re-implemented from the published source of llm-analysis 0.2.2 (analysis.py), which cannot be installed beside"
    " current packages: latency_per_iter of LLMAnalysis.training with flops_efficiency 0.5, which its README names for"
    " training, the model as its get_model_config_from_hf reads one, feed-forward width 4 h; it has no communication,"
    " no pipeline bubble and no memory-bound work in it"
)


def predict(row: Row) -> float | None:
    """Tokens per second of one GPU; None for experts, latent attention, context parallelism, adapters or offload."""
    if row.spec is None or not _covers(row.spec):
        return None
    peak = _run.peak(row.spec)
    if peak is None:
        return None
    return _run.speed(row.spec, latency_per_iter(row.spec, peak))


def _covers(spec: RunSpec) -> bool:
    model, parallel = spec.model, spec.parallel
    dense = not model.num_experts and not model.kv_lora_rank
    grid = parallel.context == parallel.ulysses == parallel.replicate == 1
    # Its selective recomputation is that of core attention; per-operator checkpointing is another thing.
    known = spec.checkpointing.mode != "selective" or spec.backend.name == "megatron"
    # FP8 is among its open points; its data types of 8 bits are integers.
    return dense and grid and known and _run.trains_everything(spec) and spec.precision.compute in {"bf16", "fp16"}


def latency_per_iter(spec: RunSpec, peak: float) -> float:
    """``m x FLOPs of a micro-batch / (t p x 0.5 x peak)``: m micro-batches, whatever the pipeline."""
    share = EFFICIENCY * peak * spec.parallel.tensor * spec.parallel.pipeline
    return spec.gradient_accumulation * flops_of_micro_batch(spec) / share


def flops_of_micro_batch(spec: RunSpec) -> float:
    """Three times the forward pass, and once more what is recomputed."""
    forward = flops_forward(spec)
    recomputed = {"none": 0.0, "selective": spec.model.num_hidden_layers * _scores(spec), "full": forward}
    return 3 * forward + recomputed[spec.checkpointing.mode]


def flops_forward(spec: RunSpec) -> float:
    """``L (4 b s h^2 (1 + g / a) + 4 b s^2 h + 16 b s h^2) + 2 b s h V``, g key and value heads of a."""
    model = spec.model
    tokens, hidden = spec.micro_batch_size * spec.sequence_length, model.hidden_size
    projections = 4 * tokens * hidden**2 * (1 + model.key_value_heads / model.num_attention_heads)
    layer = projections + _scores(spec) + 16 * tokens * hidden**2
    return model.num_hidden_layers * layer + 2 * tokens * hidden * model.vocab_size


def _scores(spec: RunSpec) -> float:
    return 4 * spec.micro_batch_size * spec.sequence_length**2 * spec.model.hidden_size
