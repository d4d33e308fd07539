"""EleutherAI's cookbook, ``calc/calc_transformer_mem.py``, re-implemented."""

from __future__ import annotations

from benchmarks.estimators import _run
from launcher.spec import RunSpec

SOURCE = (
    "re-implemented from the published form of EleutherAI/cookbook, calc/calc_transformer_mem.py, with its default"
    " options (16-bit values, 4-byte gradients, no miscellaneous memory): parameters, gradients, optimizer states,"
    " activations and ZeRO's buffers"
)


def predict(spec: RunSpec) -> int | None:
    """Bytes of one GPU; None for experts, latent attention, context parallelism, replicas, adapters, not 16 bits."""
    model, parallel = spec.model, spec.parallel
    dense = not model.num_experts and not model.kv_lora_rank
    grid = parallel.context == parallel.ulysses == parallel.replicate == 1
    # What it calls checkpointed is arXiv:2205.05198's selective form, which people give it for both modes.
    sixteen = spec.precision.compute in _run.SIXTEEN_BITS
    if not (dense and grid and sixteen and _run.trains_everything(spec)):
        return None
    return round(states(spec) + buffers(spec) + activations(spec))


def parameters(spec: RunSpec) -> float:
    """``2 V h + s h + (8 L + 2) h + 2 (1 + g / a) L h^2 + n L h f``, n linears in the MLP."""
    model = spec.model
    hidden, layers = model.hidden_size, model.num_hidden_layers
    embedding = 2 * model.vocab_size * hidden + hidden * spec.sequence_length
    norms = 8 * hidden * layers + 2 * hidden
    attention = 2 * (1 + model.key_value_heads / model.num_attention_heads) * layers * hidden**2
    linears = 3 if model.gated else 2
    return embedding + norms + attention + linears * layers * hidden * model.intermediate_size


def states(spec: RunSpec) -> float:
    """``2 P / (t p)``, over all GPUs again at stage 3; ``4 P`` and ``12 P``, over all GPUs from stages 2 and 1 on."""
    stage, total = _run.zero_stage(spec), parameters(spec)
    weights = 2 * total / (spec.parallel.tensor * spec.parallel.pipeline)
    gradients, optimizer = 4 * total, 12 * total
    return (
        weights / (spec.gpus if stage == 3 else 1)
        + gradients / (spec.gpus if stage >= 2 else 1)
        + optimizer / (spec.gpus if stage >= 1 else 1)
    )


def buffers(spec: RunSpec) -> float:
    """The all-gather bucket of ZeRO between data parallel ranks, and the live parameters of stage 3, 2 bytes each."""
    stage = _run.zero_stage(spec)
    bucket = spec.zero.allgather_bucket_size if stage >= 1 and spec.data_degree > 1 else 0
    return 2 * (bucket + (spec.zero.max_live_parameters if stage == 3 else 0))


def activations(spec: RunSpec) -> float:
    """``s b h L (16 x 2 + 2)``, and ``(2 x 2 + 1) a s / h`` more without checkpointing; divided by no degree."""
    model, length = spec.model, spec.sequence_length
    scores = 0.0
    if spec.checkpointing.mode == "none":
        scores = (2 * 2 + 1) * model.num_attention_heads * length / model.hidden_size
    tokens = length * spec.micro_batch_size
    return tokens * model.hidden_size * model.num_hidden_layers * (16 * 2 + 2 + scores)
