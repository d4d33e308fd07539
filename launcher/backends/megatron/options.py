"""Every argument of Megatron-LM's own parser, by what it does to memory (megatron-core 0.19.2).

An argument has a setting of the launcher's, which the estimate reads (``extra.SETTINGS``); or is counted from
``backend.extra`` itself (``implementation.COUNTED``); or holds no memory that is not counted (``NO_MEMORY``, by the
reason); or is refused (``REFUSED``, by the reason). A test reads Megatron's own parser and asks for the class of each;
one of another version, which has none, is named in a warning. A name that ends in ``*`` is a beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

VERSION = "0.19.2"
"""The release whose arguments stand here."""

NO_MEMORY: Mapping[str, str] = {
    "it prints, logs or profiles": """
        app-tag-* config-logger-dir disable-log-* disable-straggler-* dump-param-* log-* logging-*
        memory-snapshot-path moe-per-layer-logging moe-routing-trace-* no-barrier-with-level-1-timing no-log-*
        no-one-logger nvtx-ranges one-logger-* profile profile-* pytorch-profiler-* record-memory-history
        record-shapes run-workload-inspector-server save-activations-interval save-dgrads-interval
        save-params-interval save-tokens-per-expert-interval save-wgrads-interval straggler-* tensorboard-* timing-*
        use-pytorch-* wandb-*
    """,
    "of checkpoints, which are counted as Megatron writes them": """
        async-* auto-detect-ckpt-format ckpt-* disable-ckpt-* disable-stream-ckpt-dequant disable-strict-* dist-ckpt-*
        distrib-optim-* exit-on-missing-checkpoint finetune load-main-params-from-ckpt no-ckpt-* no-load-* no-save-*
        no-stream-ckpt-dequant no-strict-fsdp-dtensor-load non-persistent-* override-* persistent-save-interval
        pretrained-checkpoint replication replication-* save-retain-interval use-checkpoint-opt-param-scheduler
        use-dist-ckpt use-mp-args-from-checkpoint-args use-persistent-ckpt-worker verify-integrity
    """,
    "of how processes start, end and find faults": """
        adlr-* calc-ft-timeouts check-* create-all-gather-group disable-flight-recorder-* disable-gloo-process-groups
        disable-msc distributed-* enable-ft-package enable-msc error-injection-* exit-duration-in-mins exit-interval
        exit-signal exit-signal-handler exit-signal-handler-* fake-process-group fault-injector-* flight-recorder-*
        ft-* gpu-sniff-test-interval inprocess-* lazy-mpu-init local-rank nccl-communicator-config-path
        no-check-for-nan-in-loss-and-grad no-flight-recorder-* rerun-mode result-rejected-* test-mode
        train-sync-interval use-tp-pp-dp-mapping
    """,
    "of data, of whose samples the sizes are the same": """
        allow-ambiguous-pad-tokens data-args-path data-cache-path data-path dataloader-* disable-tokenizer-*
        disable-use-tokenizer-* eod-mask-loss fim-* full-validation iterations-to-skip merge-file
        mid-level-dataset-surplus multiple-validation-sets no-data-sharding no-mmap-bin-files no-tokenizer-*
        no-use-tokenizer-* null-tokenizer-* num-dataset-builder-threads object-storage-cache-path per-dataset-*
        per-split-data-args-path phase-transition-iterations reset-attention-mask reset-position-ids sample-rate
        sft-tokenizer-* split start-eval-at-iter test-data-path tiktoken-* tokenizer-* train-data-path
        trust-remote-code use-legacy-static-engine valid-data-* validation-set-names vocab-file
    """,
    "of the loss, its scale, or the step's sizes": """
        apply-wd-to-qk-layernorm calculate-per-token-loss decoupled-lr decoupled-min-lr decrease-batch-size-if-needed
        end-weight-decay hysteresis lion-beta* lr-decay-iters
        lr-decay-samples lr-warmup-* lr-wsd-* min-loss-scale moe-aux-loss-coeff moe-z-loss-coeff
        mtp-loss-scaling-factor muon-* no-weight-decay-cond-type qk-clip qk-clip-* sgd-momentum start-weight-decay
        warmup weight-decay-incr-style
    """,
    "of the values that weights and activations have": """
        activation-func-clamp-value apply-layernorm-1p apply-residual-connection-post-layernorm batch-invariant-mode
        data-parallel-random-init disable-bf16-reduced-precision-matmul
        embedding-init-method-std enable-experimental fp8-amax-compute-algo
        fp8-amax-history-len fp8-format fp8-interval fp8-margin glu-linear-offset init-method-xavier-uniform
        moe-input-jitter-eps moe-mlp-glu-interleave-size moe-router-bias-update-rate moe-router-dtype
        moe-router-enable-expert-bias moe-router-force-* moe-router-fusion moe-router-group-topk
        moe-router-load-balancing-type moe-router-num-groups moe-router-pre-softmax moe-router-quantile-*
        moe-router-score-function moe-router-topk-scaling-factor moe-shared-expert-glu-interleave-size mscale
        mscale-all-dim no-bias-gelu-fusion no-initialization no-rope-freq no-yarn-* rope-* rotary-* te-rng-tracker
        use-cpu-initialization use-rope-scaling window-attn-skip-freq window-size yarn-*
    """,
    "of when the same traffic goes, and over what": """
        ddp-average-in-collective ddp-bucket-size ddp-num-buckets ddp-pad-buckets-*
        disable-align-grad-reduce disable-symmetric-registration disable-tp-comm-* hierarchical-context-parallel-sizes
        high-priority-* moe-deepep-num-sms moe-enable-deepep moe-flex-dispatcher-* moe-hybridep-*
        moe-permute-fusion-into-hybridep moe-shared-expert-overlap moe-token-drop-policy no-align-*
        no-gradient-reduce-div-fusion no-overlap-p2p-communication no-pin-cpu-* no-tp-comm-*
        no-use-layer-wise-param-layout outer-dp-sharding-strategy overlap-cpu-optimizer-d2h-h2d overlap-grad-reduce
        overlap-p2p-communication-warmup-flush overlap-param-gather overlap-param-gather-with-*
        pipeline-model-parallel-comm-backend reuse-grad-buf-for-mxfp8-param-ag
        sharp-enabled-group suggested-communication-unit-size tp-comm-*
        use-ring-exchange-p2p use-sharp use-torch-optimizer-for-cpu-offload
    """,
    "of kernels that save the same tensors": """
        attention-dropout
        disable-clone-scatter-output-in-embedding disable-fp8-wgrad disable-jit-fuser flash-attention-version
        fp8-output-proj moe-router-padding-for-* moe-single-grouped-* no-bias-dropout-fusion
        no-clone-scatter-output-in-embedding no-fp8-wgrad no-persist-layer-norm no-rope-fusion
        use-fused-weighted-squared-relu use-grouped-gemm-for-*
    """,
    "of when Python and torch give back what is free": """
        disable-manual-gc-eval empty-unused-memory-level manual-gc manual-gc-interval no-manual-gc-eval
    """,
    "of inference or evaluation alone": """
        cache-mla-latents decode-only-cuda-graphs enable-chunked-prefill eval-* flash-decode inference-*
        max-tokens-to-oom mlp-chunks-for-prefill moe-pad-experts-for-cuda-graph-inference nccl-all-reduce-for-prefill
        no-inference-* num-speculative-tokens output-bert-embeddings skip-train symmetric-ar-type
        use-same-sampling-seed-*
    """,
    "of another argument, which is refused": """
        chat-template cpu-offloading-retain-* cuda-graph-warmup-steps delay-offload-until-cuda-graph disable-dsa-*
        disable-mamba-*
        dsa-* fine-grained-offloading-* fp4-quantizer-factory fp8-quantizer-factory
        kitchen-attention-backend linear-* logits-load-* logits-save-* mamba-*
        mlp-chunks-for-training moe-enable-routing-replay moe-ncclep-* moe-pad-expert-input-to-capacity
        moe-paged-stash-* moe-upcycling-granularity mtp-detach-heads mtp-hybrid-* mtp-use-* mup-* no-dsa-*
        optimizer-cuda-graph torch-fsdp2-*
    """,
    "Megatron-LM does so in any case": "onnx-safe use-mcore-models",
}
"""Arguments on which no memory depends beyond what is counted, by the reason."""

_PARTS = "parameters of layers that nothing here counts"
_BUFFERS = "it takes buffers that are not counted"
_SAVED = "other tensors would wait for the backward pass than are counted"

REFUSED: Mapping[str, str] = {
    f"it brings {_PARTS}": """
        attention-output-gate moe-latent-size moe-shared-expert-gate use-mup
    """,
    "the model would be another than the one that is counted": """
        bert-* biencoder-* block-data-path ckpt-convert-format classes-fraction data-per-class-fraction
        decoder-num-layers decoder-seq-length dino-* embedding-path encoder-num-layers encoder-seq-length
        evidence-data-path experimental-attention-variant freeze-* head-lr-mult heterogeneous-layers-* hybrid-* ict-*
        img-h img-w indexer-* is-hybrid-model iter-per-epoch linear-attention-freq mask-factor mask-prob mask-type
        moe-use-upcycling mrope-section num-channels num-classes openai-gelu patch-dim query-in-block-prob quick-geglu
        relative-attention-* retriever-* short-seq-prob spec swin-backbone-type titles-data-path use-checkpoint-args
        use-one-sent-docs vision-* yaml-cfg
    """,
    "another program than training by next tokens runs": """
        grpo-* langrl-* logits-load-dir no-rl-* perform-rl-step refit-method rl-* sft
    """,
    _BUFFERS: """
        ddp-param-name-patterns-* ddp-reduce-scatter-with-fp32-accumulation enable-full-sharding-in-hsdp
        expert-tensor-parallel-num-weight-shards fp32-residual-connection fsdp-* keep-fp8-transpose-cache
        megatron-fsdp-enable-* megatron-fsdp-max-* moe-expert-rank-capacity-factor moe-paged-stash
        tensor-parallel-num-weight-shards use-nccl-ub
    """,
    _SAVED: """
        checkpoint-activations delay-wgrad-compute distribute-saved-activations ep-overlap-early-attn-memory-release
        fp16-lm-cross-entropy fused-residual-rmsnorm mla-down-proj-fusion moe-apply-probs-on-input moe-layer-recompute
        no-bias-swiglu-fusion overlap-dispatch-backward-with-experts-wgrad qk-l2-norm recompute-activations
        use-kitchen-attention use-te-activation-func use-transformer-engine-op-fuser
    """,
    "more activations would stay on the GPU than are counted": """
        activation-offload-fraction delta-offload-bytes-* min-offloaded-tensor-size
    """,
    "its products are in other formats than are counted": "te-precision-config-file",
    "experts would take more tokens than an even share": "moe-expert-capacity-factor",
    "tokens would be gathered over all ranks of experts": "moe-token-dispatcher-type",
    "attention would have a weight more for each head": "softmax-type",
    "a part of the optimizer's states would stay on the GPU": "optimizer-offload-fraction",
    "torch's FSDP2 would shard": "use-torch-fsdp2",
    "formats of the optimizer are settings": "main-grads-dtype use-precision-aware-optimizer",
    "the sequence of a rank would be another than is counted": "hybrid-context-parallel max-seqlen-per-dp-cp-rank",
    f"megatron-core {VERSION} ignores it: batches are whole from the first step on": "rampup-batch-size",
    "batches are of train.global_batch_size from the first step on, from which steps, tokens and schedule follow": """
        step-batch-size-schedule
    """,
    "the launcher writes it from its settings": """
        batch-size disable-pad-vocab-size group-query-attention model-parallel-size mtp-standalone no-pad-vocab-size
        no-position-embedding padded-vocab-size use-flash-attn use-rotary-position-embeddings vocab-extra-ids
    """,
}
"""Arguments that would change memory, or what is trained, behind the estimate's back, by the reason."""

INSTEAD: Mapping[str, str] = {
    "distribute-saved-activations": "parallel.sequence=true",
    "group-query-attention": "model.num_key_value_heads=4",
    "hybrid-context-parallel": "parallel.context=2",
    "optimizer-offload-fraction": "zero.offload_optimizer=cpu",
    "recompute-activations": "checkpointing=selective",
    "sft": "data=chat",
    "use-flash-attn": "model.attention=flash",
    "use-precision-aware-optimizer": "precision.optimizer_states=bf16",
    "use-rotary-position-embeddings": "model.position_embedding=rope",
    "use-torch-fsdp2": "parallel=fsdp",
}
"""Words for what comes near a refused argument."""

LET_THROUGH: Mapping[str, tuple[object, ...]] = {
    "moe-token-dispatcher-type": ("alltoall", "flex"),
    "optimizer-offload-fraction": (1, 1.0),
    "softmax-type": ("vanilla",),
    "vocab-extra-ids": (0,),
}
"""Values of refused arguments with which a run is what it is without them."""


@cache
def _table() -> tuple[dict[str, tuple[str, bool]], list[tuple[str, tuple[str, bool]]]]:
    whole: dict[str, tuple[str, bool]] = {}
    for table, is_refused in ((NO_MEMORY, False), (REFUSED, True)):
        whole |= {name: (reason, is_refused) for reason, names in table.items() for name in names.split()}
    beginnings = [(name[:-1], found) for name, found in whole.items() if name.endswith("*")]
    return whole, sorted(beginnings, key=lambda pair: -len(pair[0]))


def line(name: str) -> tuple[str, bool] | None:
    """The reason of an argument's class, and true if it is refused; None for one that no class has."""
    whole, beginnings = _table()
    return whole.get(name) or next((found for start, found in beginnings if name.startswith(start)), None)
