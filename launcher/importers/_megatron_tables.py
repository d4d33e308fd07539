"""Table of what Megatron-LM's arguments do (``megatron/training/arguments.py``, megatron-core 0.19.2).

An argument that is neither here nor mapped to a setting in ``_megatron_settings`` may change memory: it is named.
"""

from __future__ import annotations

DROPPED_PREFIXES = (
    "adlr-", "app-tag-", "async-", "auto-detect-ckpt-", "ckpt-", "data-", "dataloader-", "dist-ckpt-", "distrib-optim-",
    "eval-", "exit-", "fim-", "ft-", "inprocess-", "log-", "logging-", "manual-gc", "non-persistent-", "one-logger",
    "master-", "monitor-", "no-ckpt-", "no-log-", "no-manual-gc", "no-one-logger", "no-save-", "no-load-", "per-",
    "profile", "pytorch-profiler-", "rdzv-", "rerun-", "straggler-", "tensorboard-", "tiktoken-", "timing-",
    "tokenizer-", "wandb-",
)  # fmt: skip
"""Logging, profiling, data and checkpoint files, and the start of the processes: other matters of the launcher."""

DROPPED = frozenset((
    "calc-ft-timeouts", "check-for-large-grads", "check-for-spiky-loss",
    "check-weight-hash-across-dp-replicas-interval", "config-logger-dir", "disable-straggler-on-startup",
    "distributed-backend", "enable-ft-package", "error-injection-rate", "error-injection-type",
    "exit-on-missing-checkpoint", "finetune", "full-validation", "load", "local-rank", "merge-file",
    "mid-level-dataset-surplus", "no-barrier-with-level-1-timing", "no-check-for-nan-in-loss-and-grad",
    "no-mmap-bin-files", "no-strict-fsdp-dtensor-load", "node-rank", "null-tokenizer-eod-id",
    "num-dataset-builder-threads", "num-workers", "override-ckpt-iteration", "override-opt-param-scheduler",
    "persistent-save-interval", "save", "save-retain-interval", "skip-train", "split", "standalone",
    "start-eval-at-iter", "test-data-path", "train-data-path", "train-sync-interval", "trust-remote-code",
    "use-checkpoint-args", "use-checkpoint-opt-param-scheduler", "use-dist-ckpt", "use-mcore-models",
    "use-persistent-ckpt-worker", "valid-data-path", "verify-integrity", "vocab-file",
))  # fmt: skip
"""Names of further such arguments, one by one."""

CARRIED_PREFIXES = ("lr-", "muon-", "rope-", "sgd-", "yarn-")

CARRIED = frozenset((
    "add-position-embedding", "align-grad-reduce", "apply-query-key-layer-scaling", "attention-softmax-in-fp32",
    "calculate-per-token-loss", "data-parallel-random-init", "ddp-average-in-collective", "decoupled-lr",
    "decoupled-min-lr", "disable-jit-fuser", "enable-experimental", "end-weight-decay", "eod-mask-loss",
    "flash-attention-version", "fp8-amax-compute-algo", "fp8-amax-history-len", "fp8-format", "fp8-interval",
    "fp8-margin", "high-priority-a2a-comm-stream", "hysteresis", "init-method-xavier-uniform", "initial-loss-scale",
    "lion-beta1", "lion-beta2", "loss-scale", "loss-scale-window", "min-loss-scale", "moe-aux-loss-coeff",
    "moe-grouped-gemm", "moe-input-jitter-eps", "moe-per-layer-logging", "moe-router-bias-update-rate",
    "moe-router-enable-expert-bias", "moe-router-fusion", "moe-router-group-topk", "moe-router-load-balancing-type",
    "moe-router-num-groups", "moe-router-pre-softmax", "moe-router-score-function", "moe-router-topk-scaling-factor",
    "moe-z-loss-coeff", "mscale", "mscale-all-dim", "no-align-grad-reduce", "no-align-param-gather",
    "no-create-attention-mask-in-dataloader", "no-gradient-reduce-div-fusion", "no-overlap-p2p-communication",
    "overlap-cpu-optimizer-d2h-h2d", "overlap-grad-reduce", "overlap-param-gather", "reset-attention-mask",
    "reset-position-ids", "rotary-interleaved", "rotary-percent", "rotary-scaling-factor",
    "rotary-seq-len-interpolation-factor", "start-weight-decay", "use-fused-weighted-squared-relu",
    "use-rope-scaling", "use-sharp", "use-tp-pp-dp-mapping", "weight-decay-incr-style",
))  # fmt: skip
"""Without effect on memory, with one on the result or the speed: they travel in ``backend.extra``."""

USUAL: dict[str, object] = {
    "batch-size": None,
    "cross-entropy-fusion-impl": "native",
    "cuda-graph-impl": "none",
    "make-vocab-size-divisible-by": 128,
    "moe-router-dtype": "fp32",
    "moe-token-dispatcher-type": "alltoall",
    "no-rope-fusion": None,
    "onnx-safe": False,
    "optimizer-offload-fraction": 1.0,
    "outer-dp-sharding-strategy": "no_shard",
    "transformer-impl": "transformer_engine",
    "vocab-extra-ids": 0,
}
"""Values with which an argument changes nothing in the estimate: those that it assumes."""


def is_dropped(name: str) -> bool:
    """True if the launcher has other means for the argument's purpose."""
    return name in DROPPED or name.startswith(DROPPED_PREFIXES)


def is_carried(name: str) -> bool:
    """True if the argument is handed on without a word."""
    return name in CARRIED or name.startswith(CARRIED_PREFIXES)
