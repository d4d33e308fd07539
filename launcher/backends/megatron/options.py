"""Every argument of Megatron-LM's own parser, by what it does to memory (megatron-core 0.19.2).

An argument has a setting of the launcher's, which the estimate reads (``SETTINGS``); or is counted from
``backend.extra`` itself (``implementation.COUNTED``); or holds no memory that is not counted (``NO_MEMORY``, by the
reason); or is refused (``REFUSED``, by the reason). A test reads Megatron's own parser and asks for the class of each;
one of another version, which has none, is named in a warning. A name that ends in ``*`` is a beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

VERSION = "0.19.2"
"""The release whose arguments stand here."""

SETTINGS: Mapping[str, str] = {
    "accumulate-allreduce-grads-in-fp32": "precision.accumulate", "adam-beta1": "optimizer.beta1",
    "adam-beta2": "optimizer.beta2", "adam-eps": "optimizer.epsilon", "add-qkv-bias": "model.attention_bias",
    "async-save": "save.async", "attention-backend": "model.attention", "bf16": "precision.compute",
    "clip-grad": "optimizer.clip", "context-parallel-size": "parallel.context",
    "cross-entropy-loss-fusion": "train.loss", "data-parallel-sharding-strategy": "zero.stage",
    "decoder-first-pipeline-num-layers": "parallel.first_stage_layers",
    "decoder-last-pipeline-num-layers": "parallel.last_stage_layers",
    "cuda-graph-impl": "train.cuda_graphs", "cuda-graph-modules": "train.cuda_graphs",
    "cuda-graph-scope": "train.cuda_graphs", "disable-bias-linear": "model.mlp_bias",
    "enable-cuda-graph": "train.cuda_graphs", "external-cuda-graph": "train.cuda_graphs",
    "eval-interval": "train.eval_every", "eval-iters": "train.eval_steps",
    "exp-avg-dtype": "precision.optimizer_states", "exp-avg-sq-dtype": "precision.optimizer_states",
    "expert-model-parallel-size": "parallel.expert", "expert-tensor-parallel-size": "parallel.expert_tensor",
    "cpu-offloading-num-layers": "checkpointing.layers", "fine-grained-activation-offloading": "checkpointing.offload",
    "offload-modules": "checkpointing.offload_modules",
    "ffn-hidden-size": "model.intermediate_size", "fp16": "precision.compute", "fp4-format": "precision.compute",
    "fp4-recipe": "precision.recipe", "fp8-recipe": "precision.recipe",
    "global-batch-size": "train.global_batch_size", "grad-reduce-in-bf16": "precision.reduce",
    "hidden-dropout": "model.dropout", "hidden-size": "model.hidden_size", "init-method-std": "model.initializer_range",
    "kv-channels": "model.head_dim", "kv-lora-rank": "model.kv_lora_rank", "load": "save.load",
    "initial-loss-scale": "precision.initial_loss_scale", "log-interval": "train.log_every",
    "loss-scale": "precision.loss_scale", "loss-scale-window": "precision.loss_scale_window", "lr": "optimizer.lr",
    "lr-decay-style": "optimizer.schedule", "lr-warmup-fraction": "optimizer.warmup_ratio",
    "lr-wsd-decay-iters": "optimizer.wsd_decay_steps", "lr-wsd-decay-style": "optimizer.wsd_decay",
    "lr-warmup-iters": "optimizer.warmup_steps", "main-params-dtype": "precision.master",
    "max-position-embeddings": "model.max_position_embeddings", "megatron-fsdp-grad-comm-dtype": "precision.reduce",
    "megatron-fsdp-main-grads-dtype": "precision.accumulate", "megatron-fsdp-main-params-dtype": "precision.master",
    "micro-batch-size": "train.micro_batch_size", "min-lr": "optimizer.min_lr", "mock-data": "data.source",
    "moe-ffn-hidden-size": "model.moe_intermediate_size", "moe-layer-freq": "model.first_dense_layers",
    "moe-router-topk": "model.num_experts_per_tok", "moe-shared-expert-intermediate-size": "model.num_shared_experts",
    "mtp-num-layers": "model.mtp_layers", "multi-latent-attention": "model.kv_lora_rank",
    "norm-epsilon": "model.norm_epsilon", "normalization": "model.normalization",
    "num-attention-heads": "model.num_attention_heads",
    "num-distributed-optimizer-instances": "parallel.replicate", "num-experts": "model.num_experts",
    "num-layers": "model.num_hidden_layers", "num-layers-per-virtual-pipeline-stage": "parallel.virtual_pipeline",
    "num-query-groups": "model.num_key_value_heads",
    "num-virtual-stages-per-pipeline-rank": "parallel.virtual_pipeline", "num-workers": "data.workers",
    "optimizer": "optimizer.name", "optimizer-cpu-offload": "zero.offload_optimizer",
    "pipeline-model-parallel-layout": "parallel.layout", "pipeline-model-parallel-size": "parallel.pipeline",
    "position-embedding-type": "model.position_embedding",
    "q-lora-rank": "model.q_lora_rank", "qk-head-dim": "model.qk_nope_head_dim", "qk-layernorm": "model.qk_norm",
    "qk-pos-emb-head-dim": "model.qk_rope_head_dim", "recompute-granularity": "checkpointing.mode",
    "recompute-method": "checkpointing.method", "recompute-modules": "checkpointing.modules",
    "recompute-num-layers": "checkpointing.layers", "rotary-base": "model.rope_theta", "save": "run.directory",
    "save-interval": "save.every", "seed": "train.seed", "seq-length": "train.sequence_length",
    "sequence-parallel": "parallel.sequence", "squared-relu": "model.hidden_act", "swiglu": "model.hidden_act",
    "tensor-model-parallel-size": "parallel.tensor", "train-iters": "train.steps", "train-samples": "train.steps",
    "untie-embeddings-and-output-weights": "model.tie_word_embeddings", "use-distributed-optimizer": "zero.stage",
    "use-megatron-fsdp": "zero.stage", "v-head-dim": "model.v_head_dim", "vocab-size": "model.vocab_size",
    "wandb-project": "tracking.project", "weight-decay": "optimizer.weight_decay",
}  # fmt: skip
"""Arguments that have a setting of their own, which the memory estimate and the record of the run read as well."""

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
        overlap-cpu-optimizer-d2h-h2d overlap-grad-reduce
        overlap-p2p-communication-warmup-flush overlap-param-gather overlap-param-gather-with-*
        pipeline-model-parallel-comm-backend reuse-grad-buf-for-mxfp8-param-ag
        sharp-enabled-group tp-comm-*
        use-ring-exchange-p2p use-sharp use-torch-optimizer-for-cpu-offload
    """,
    "of kernels that save the same tensors": """
        attention-dropout
        disable-clone-scatter-output-in-embedding disable-jit-fuser flash-attention-version
        moe-router-padding-for-* moe-single-grouped-* no-bias-dropout-fusion
        no-clone-scatter-output-in-embedding no-persist-layer-norm no-rope-fusion
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
        no-use-layer-wise-param-layout suggested-communication-unit-size tensor-parallel-num-weight-shards use-nccl-ub
    """,
    _SAVED: """
        checkpoint-activations delay-wgrad-compute disable-fp8-wgrad distribute-saved-activations
        ep-overlap-early-attn-memory-release fp16-lm-cross-entropy fused-residual-rmsnorm mla-down-proj-fusion
        moe-apply-probs-on-input moe-layer-recompute no-bias-swiglu-fusion no-fp8-wgrad
        overlap-dispatch-backward-with-experts-wgrad qk-l2-norm recompute-activations
        use-kitchen-attention use-te-activation-func use-transformer-engine-op-fuser
    """,
    "more activations would stay on the GPU than are counted": """
        activation-offload-fraction delta-offload-bytes-* min-offloaded-tensor-size
    """,
    "its products are in other formats than are counted": "fp8-output-proj te-precision-config-file",
    "the replicas of shards would share out what is counted whole": "outer-dp-sharding-strategy",
    "experts would take more tokens than an even share": "moe-expert-capacity-factor",
    "tokens would be exchanged in another way than is counted": "moe-token-dispatcher-type",
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
    "moe-token-dispatcher-type": ("allgather", "alltoall", "flex"),
    "optimizer-offload-fraction": (1, 1.0),
    "outer-dp-sharding-strategy": ("no_shard",),
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
