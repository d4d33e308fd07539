"""llm-analysis 0.2.2, ``LLMAnalysis.training``, re-implemented."""

from __future__ import annotations

from benchmarks.estimators import _run
from launcher.spec import RunSpec

SOURCE = (
    "re-implemented from the published source of llm-analysis 0.2.2 (analysis.py), which cannot be installed beside"
    " current packages: weights, optimizer states, gradients and activations of LLMAnalysis.training with its default"
    " options, the model as its get_model_config_from_hf reads one, feed-forward width 4 h"
)
_FP32 = 4
_ADAM = 4 + 2 * 4


def predict(spec: RunSpec) -> int | None:
    """Bytes of one GPU; None for experts, latent attention, context parallelism, replicas, adapters, not 16 bits."""
    if not _covers(spec):
        return None
    return round(states(spec) + activations(spec))


def _covers(spec: RunSpec) -> bool:
    model, parallel = spec.model, spec.parallel
    dense = not model.num_experts and not model.kv_lora_rank
    grid = parallel.context == parallel.ulysses == parallel.replicate == 1
    # Its selective recomputation is that of core attention; per-operator checkpointing is another thing.
    known = spec.checkpointing.mode != "selective" or spec.backend.name == "megatron"
    return dense and grid and known and _run.trains_everything(spec) and spec.precision.compute in _run.SIXTEEN_BITS


def parameters_of_layer(spec: RunSpec) -> float:
    """``2 h^2 + 2 h^2 g / a + 2 h f + 2 h`` with ``f = 4 h``, g key and value heads, at least one a GPU."""
    model, tensor = spec.model, spec.parallel.tensor
    hidden, groups = model.hidden_size, max(model.key_value_heads / tensor, 1) * tensor
    attention = 2 * hidden**2 + 2 * hidden**2 * groups / model.num_attention_heads
    return attention + 2 * hidden * 4 * hidden + 2 * hidden


def states(spec: RunSpec) -> float:
    """``(2 + 4 + 12) x`` the parameters of a stage, each share divided as the stage of ZeRO says.

    Layers are divided by the pipeline stages, the table is not; an output projection of its own is not counted.
    """
    model, stage = spec.model, _run.zero_stage(spec)
    layers = model.num_hidden_layers // spec.parallel.pipeline
    around = model.hidden_size * model.vocab_size + model.hidden_size
    held = (layers * parameters_of_layer(spec) + around) / spec.parallel.tensor
    ranks = spec.data_degree
    weights = 2 / (ranks if stage == 3 else 1)
    gradients = _FP32 / (ranks if stage >= 2 else 1)
    optimizer = _ADAM / (ranks if stage >= 1 else 1)
    return held * (weights + gradients + optimizer)


def activations(spec: RunSpec) -> float:
    """All layers of the model for one micro-batch, whatever the pipeline, logits in 16 bits and the last norm.

    A micro-batch of one sequence has the logits and the last norm twice: the published function starts from its own
    figure for one sequence, which has them, and adds them again.
    """
    model, tensor = spec.model, spec.parallel.tensor
    tokens = spec.micro_batch_size * spec.sequence_length
    norm = tokens * model.hidden_size * _FP32 / _sequence_ranks(spec)
    if spec.checkpointing.mode == "full":
        layer, norm = tokens * model.hidden_size * 2 / tensor, 0.0
    else:
        layer = _attention(spec, tokens) + _feed_forward(spec, tokens) + 2 * norm
    around = model.vocab_size * tokens * 2 / tensor + norm
    return model.num_hidden_layers * layer + (2 if spec.micro_batch_size == 1 else 1) * around


def _attention(spec: RunSpec, tokens: int) -> float:
    """``2 sbh (1 / sp + 4 / t)`` and the dropout mask ``sbh / sp``, and what core attention keeps."""
    model, tensor, ranks = spec.model, spec.parallel.tensor, _sequence_ranks(spec)
    hidden, heads = model.hidden_size, model.num_attention_heads
    core = 0.0
    if spec.checkpointing.mode != "selective":
        flash = 2 * tokens * hidden + 4 * heads * tokens
        scores = 2 * heads * spec.sequence_length * tokens
        core = 2 * (scores if model.attention == "eager" else flash) / tensor
    return 2 * (tokens * hidden / ranks + 4 * tokens * hidden / tensor) + core + tokens * hidden / ranks


def _feed_forward(spec: RunSpec, tokens: int) -> float:
    """``2 sbh / sp + 2 (2 sb 4h) / t``: the inputs of both linears and of the activation."""
    hidden = spec.model.hidden_size
    return 2 * tokens * hidden / _sequence_ranks(spec) + 2 * 2 * 4 * tokens * hidden / spec.parallel.tensor


def _sequence_ranks(spec: RunSpec) -> int:
    return spec.parallel.tensor if spec.parallel.sequence else 1
