"""Arguments of Megatron-LM that take no value (``store_true`` in ``megatron/training/arguments.py``, 0.19.2).

Only for a variable without a value that follows one: it is then no value of the switch but further arguments.
"""

from __future__ import annotations

_BEGINNINGS = ("disable-", "enable-", "no-", "use-", "log-", "overlap-", "reset-")
_WITH_VALUE = frozenset({"no-weight-decay-cond-type", "log-interval", "log-level", "log-memory-interval"})
_NAMES = frozenset((
    "accumulate-allreduce-grads-in-fp32", "add-bias-linear", "add-qkv-bias", "apply-layernorm-1p",
    "apply-query-key-layer-scaling", "apply-residual-connection-post-layernorm", "async-save",
    "attention-softmax-in-fp32", "auto-detect-ckpt-format", "bf16", "calculate-per-token-loss",
    "checkpoint-activations", "ckpt-fully-parallel-save", "cross-entropy-loss-fusion", "ddp-average-in-collective",
    "deepspeed", "deepspeed-activation-checkpointing", "eod-mask-loss", "exit-on-missing-checkpoint",
    "external-cuda-graph", "finetune", "fim-data", "fp16", "fp16-lm-cross-entropy", "fp8-param-gather",
    "grad-reduce-in-bf16", "group-query-attention", "init-method-xavier-uniform", "manual-gc", "mock-data",
    "moe-enable-deepep", "moe-grouped-gemm", "moe-layer-recompute", "moe-pad-expert-input-to-capacity",
    "moe-per-layer-logging", "moe-permute-fusion", "moe-router-enable-expert-bias", "moe-router-fusion",
    "moe-router-pre-softmax", "moe-shared-expert-overlap", "moe-use-upcycling", "multi-latent-attention",
    "openai-gelu", "optimizer-cpu-offload", "profile", "qk-layernorm", "recompute-activations", "rotary-interleaved",
    "sequence-parallel", "sft", "skip-train", "squared-relu", "standalone", "swiglu", "tp-comm-overlap",
    "untie-embeddings-and-output-weights", "wandb-save-code", "zero-contigious-gradients",
))  # fmt: skip


def is_switch(name: str) -> bool:
    """True if the argument takes no value."""
    return name in _NAMES or (name.startswith(_BEGINNINGS) and name not in _WITH_VALUE)
