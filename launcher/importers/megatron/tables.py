"""The effects of Megatron-LM's arguments that no setting here says (``training/arguments.py``, megatron-core 0.19.2).

Arguments of earlier releases and of Megatron-DeepSpeed's forks stand beside them. An argument that changes memory or
the model, and that the estimate does not count, is never kept in silence: it is left out and matters. A name that ends
in ``*`` is a beginning.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.base.frozen import dataclass
from launcher.importers.megatron.arguments import ByName, names_in, names_table

KEPT = names_in("""
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split activation-func-clamp-value
    apply-layernorm-1p apply-query-key-layer-scaling apply-residual-connection-post-layernorm apply-wd-to-qk-layernorm
    attention-softmax-in-fp32 batch-invariant-mode calculate-per-token-loss cp-comm-type
    cpu-offloading-retain-pinned-cpu-buffers create-all-gather-group ddp-average-in-collective ddp-bucket-size
    ddp-num-buckets ddp-pad-buckets-for-high-nccl-busbw decoupled-lr decoupled-min-lr decrease-batch-size-if-needed
    defer-embedding-wgrad-compute delay-offload-until-cuda-graph deterministic-mode disable-align-grad-reduce
    disable-bf16-reduced-precision-matmul disable-clone-scatter-output-in-embedding disable-gloo-process-groups
    disable-jit-fuser disable-manual-gc-eval disable-symmetric-registration disable-tp-comm-bulk-dgrad
    disable-tp-comm-bulk-wgrad disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs disable-tp-comm-split-ag
    disable-tp-comm-split-rs empty-unused-memory-level enable-experimental end-weight-decay
    fine-grained-offloading-max-inflight-offloads first-last-layers-bf16 flash-attention-version fp4-param-gather
    fp8-amax-compute-algo fp8-amax-history-len fp8-interval fp8-margin fp8-param-gather glu-linear-offset
    hierarchical-context-parallel-sizes high-priority-a2a-comm-stream high-priority-stream-groups hysteresis
    init-model-with-meta-device kitchen-attention-backend manual-gc manual-gc-interval
    microbatch-group-size-per-virtual-pipeline-stage min-loss-scale moe-aux-loss-coeff moe-deepep-num-sms
    moe-enable-deepep moe-flex-dispatcher-backend moe-flex-dispatcher-num-sms moe-grouped-gemm
    moe-hybridep-num-blocks-permute moe-hybridep-num-blocks-unpermute moe-hybridep-num-sms
    moe-hybridep-num-sms-preprocessing moe-hybridep-pad-uneven-dispatch-inputs moe-input-jitter-eps
    moe-mlp-glu-interleave-size moe-ncclep-static-shape moe-ncclep-zero-copy moe-permute-fusion
    moe-permute-fusion-into-hybridep moe-router-bias-update-rate moe-router-enable-expert-bias moe-router-force-biased
    moe-router-force-load-balancing moe-router-fusion moe-router-group-topk moe-router-load-balancing-type
    moe-router-num-groups moe-router-padding-for-fp8 moe-router-padding-for-quantization moe-router-pre-softmax
    moe-router-quantile-balancing-ema moe-router-score-function moe-router-topk-scaling-factor
    moe-shared-expert-glu-interleave-size moe-shared-expert-overlap moe-single-grouped-bias moe-single-grouped-weight
    moe-token-dispatcher-type moe-token-drop-policy moe-z-loss-coeff mscale mscale-all-dim muon-coefficient-type
    muon-extra-scale-factor muon-fp32-matmul-prec muon-momentum muon-nesterov muon-no-split-qkv muon-num-ns-steps
    muon-scalar-optimizer muon-scale-mode muon-tp-mode nccl-communicator-config-path no-align-grad-reduce
    no-align-param-gather no-bias-dropout-fusion no-clone-scatter-output-in-embedding
    no-create-attention-mask-in-dataloader no-gradient-accumulation-fusion no-gradient-reduce-div-fusion
    no-initialization no-manual-gc-eval no-masked-softmax-fusion no-overlap-p2p-communication no-persist-layer-norm
    no-pin-cpu-grads no-pin-cpu-params no-rope-freq no-rope-fusion no-tp-comm-bulk-dgrad no-tp-comm-bulk-wgrad
    no-tp-comm-overlap-ag no-tp-comm-overlap-rs no-tp-comm-split-ag no-tp-comm-split-rs no-weight-decay-cond-type
    no-yarn-correction-range-round-to-int num-layers-at-end-in-bf16 num-layers-at-start-in-bf16
    overlap-cpu-optimizer-d2h-h2d overlap-grad-reduce overlap-moe-expert-parallel-comm
    overlap-p2p-communication-warmup-flush overlap-param-gather overlap-param-gather-with-optimizer-step
    pipeline-model-parallel-comm-backend qk-clip qk-clip-alpha qk-clip-threshold reuse-grad-buf-for-mxfp8-param-ag
    rope-scaling-factor rope-type rotary-interleaved rotary-percent rotary-scaling-factor
    rotary-seq-len-interpolation-factor sharp-enabled-group start-weight-decay te-rng-tracker tp-comm-bootstrap-backend
    tp-comm-overlap tp-comm-overlap-cfg tp-comm-overlap-rs-dgrad use-cpu-initialization use-fused-weighted-squared-relu
    use-grouped-gemm-for-dense-mlp use-grouped-gemm-for-shared-expert use-ring-exchange-p2p use-rope-scaling use-sharp
    use-torch-optimizer-for-cpu-offload use-tp-pp-dp-mapping weight-decay-incr-style wgrad-deferral-limit
    window-attn-skip-freq window-size yarn-beta-fast yarn-beta-slow yarn-correction-range-round-to-int
    yarn-original-max-position-embeddings
""")  # fmt: skip
"""Arguments on which the engine acts and that leave memory as it is, or are counted: ``backend.extra``."""

_LOGS = "no effect: of logs, which are the launcher's own (metrics.jsonl, launch logs)"
_PROFILES = "no effect: of profiles alone"
_FILES = "no effect: backend=megatron chooses how checkpoints are written and read"
_RESUMED = "no effect: of a checkpoint that is loaded; launch resume goes on from the run's own"
_STARTS = "no effect: the launcher starts the processes"
_READS = "no effect: of how files of data are read"
_FAULTS = "no effect: of finding and mending faults, which the launcher does its own way"
_ENDS = "no effect: the run has no such end here; cluster.time limits a job"
_CYCLIC = "no effect: it is of --dataloader-type cyclic, which the run is without"
_INFERENCE = "no effect: of inference alone"
_EVALUATES = "no effect: on training; evaluation takes the batches and the data that it has here"
_IDLE_ALONE = "no effect: of another argument, without which nothing reads it"
_OLD = "no effect: of an earlier Megatron-LM; the installed one does so, or has no such thing"

NO_EFFECT: Mapping[str, tuple[str, ...]] = names_table({
    _LOGS: """
        app-tag-* codecarbon-dir config-logger-dir disable-log-* disable-straggler-on-startup
        dump-param-to-param-group-map enable-one-logger log-* logging-* moe-per-layer-logging moe-routing-trace-*
        no-barrier-with-level-1-timing no-log-* no-one-logger one-logger-* run-workload-inspector-server
        save-activations-interval save-dgrads-interval save-params-interval save-tokens-per-expert-interval
        save-wgrads-interval straggler-* tensorboard-* timing-* tflops-* wandb-*
    """,
    _PROFILES: """
        memory-snapshot-path nsys-* nvtx-ranges profile profile-* pytorch-profiler-* record-memory-history record-shapes
        use-pytorch-profiler
    """,
    _FILES: """
        async-* auto-detect-ckpt-format ckpt-assume-constant-structure ckpt-convert-save ckpt-convert-update-*
        ckpt-format ckpt-fully-parallel-* ckpt-load-* dist-ckpt-* distrib-optim-* no-ckpt-* disable-ckpt-* no-save-optim
        no-save-rng no-stream-ckpt-dequant disable-stream-ckpt-dequant no-strict-fsdp-dtensor-load
        disable-strict-fsdp-dtensor-load non-persistent-* replication replication-* save-retain-interval
        universal-checkpoint use-dist-ckpt use-persistent-ckpt-worker verify-integrity no-pipeline-checkpoint-*
    """,
    _RESUMED: """
        ckpt-step exit-on-missing-checkpoint load-main-params-from-ckpt no-load-*
        no-use-tokenizer-model-from-checkpoint-args disable-use-tokenizer-model-from-checkpoint-args
        override-ckpt-iteration override-lr-scheduler override-opt-param-scheduler use-checkpoint-lr-scheduler
        use-checkpoint-opt-param-scheduler use-mp-args-from-checkpoint-args reset-iteration reset-progress
    """,
    _STARTS: """
        distributed-backend distributed-timeout-seconds-after-init fake-process-group job-dir lazy-mpu-init local-rank
        master-* max-restarts monitor-interval node-rank rdzv-* redirects standalone tee use-mpi world-size
    """,
    _READS: """
        allow-ambiguous-pad-tokens chat-template data-cache-path data-impl dataloader-* disable-tokenizer-* eod-token-*
        make-valid-* merge-file mid-level-dataset-surplus mmap-warmup no-mmap-bin-files no-tokenizer-* null-tokenizer-*
        num-dataset-builder-threads object-storage-cache-path per-dataset-sequences-path repeated-dataloader
        s3-cache-path tiktoken-* tokenizer-* trust-remote-code vocab-file
    """,
    _FAULTS: """
        abort-on-unmet-fused-kernel-constraints adlr-* calc-ft-timeouts check-for-large-grads check-for-spiky-loss
        check-weight-hash-across-dp-replicas-interval disable-flight-recorder-* disable-msc enable-ft-package enable-msc
        error-injection-* exit-signal exit-signal-handler-for-* fault-injector-* flight-recorder-* ft-*
        gpu-sniff-test-interval inprocess-* kill-switch-path no-check-for-nan-in-loss-and-grad no-flight-recorder-*
        rerun-mode result-rejected-tracker-filename sync-tp-duplicated-parameters test-mode train-sync-interval
    """,
    _ENDS: "exit-duration-in-mins",
    _CYCLIC: "no-data-sharding",
    _INFERENCE: """
        cache-mla-latents decode-only-cuda-graphs enable-chunked-prefill flash-decode inference inference-*
        max-tokens-to-oom mlp-chunks-for-prefill moe-pad-experts-for-cuda-graph-inference nccl-all-reduce-for-prefill
        no-inference-* num-speculative-tokens symmetric-ar-type use-legacy-static-engine
        use-same-sampling-seed-across-dp-ranks
    """,
    _EVALUATES: """
        eval-global-batch-size eval-micro-batch-size eval-micro-batch-size-* full-validation multiple-validation-sets
        start-eval-at-iter validation-set-names valid-data-weights
    """,
    _IDLE_ALONE: """
        cuda-graph-modules cuda-graph-scope cuda-graph-warmup-steps dsa-* no-dsa-* disable-dsa-* fim-*
        fp4-quantizer-factory fp8-quantizer-factory linear-conv-kernel-dim linear-key-head-dim linear-num-*
        linear-value-head-dim logits-load-* logits-save-* moe-enable-routing-replay moe-paged-stash-*
        moe-upcycling-granularity mtp-* mup-* optimizer-cuda-graph relative-attention-* sft-tokenizer-prompt-format
        torch-fsdp2-no-reshard-after-forward mlp-chunks-for-training
    """,
    _OLD: """
        DDP-impl add-position-embedding contigious-checkpointing disable-moe-token-dropping enable-cuda-graph-scope
        fp8-wgrad log-path no-async-tensor-model-parallel-allreduce no-contiguous-buffers-in-local-ddp
        no-delay-grad-reduce no-disable-bias-linear no-query-key-layer-scaling no-scaled-masked-softmax-fusion
        no-scatter-gather-tensors-in-pipeline onnx-safe partition-activations synchronize-each-layer checkpoint-in-cpu
        use-contiguous-buffers-in-local-ddp use-mcore-models use-pin-memory use-scatter-gather-*
    """,
})
"""Arguments without an effect on what is trained here, by the sentence that says why."""

_MODEL = "the model there is another"
_BUFFER = "memory: it takes buffers that nothing here counts"
_WEIGHTS = "the weights that training starts from"
_BATCHES = "the data: the order or the choice of samples"
_RAMPED = "the data: batches are whole from the first step on here"
_MASKS = "the maths: here every token of a sample is a label, and sees all before it"
_GRAPHS = "memory: the pools of CUDA graphs, which nothing here counts"
_DEEPSPEED = "memory and maths: DeepSpeed's engine trains there, Megatron-LM's own here"

MATTERS: Mapping[str, tuple[str, ...]] = names_table({
    f"{_MODEL}: parameters that nothing here counts": """
        attention-output-gate embed-layernorm moe-latent-size moe-shared-expert-gate use-mup adapter-*
        hyper-connection-* enable-hyper-connections
    """,
    f"{_MODEL}: no layer is frozen here": "freeze-*",
    f"{_MODEL}: layers before Megatron-core, which nothing here counts": "use-legacy-models",
    f"{_MODEL}: its sizes are those of the checkpoint there": "use-checkpoint-args",
    f"{_MODEL}: the file that it names holds the arguments: import that": "yaml-cfg",
    f"{_MODEL}: layers of NVIDIA ModelOpt": "export-* enable-modelopt modelopt-*",
    "memory: it is lower or higher there, and nothing here counts it": """
        activation-offload-fraction delta-offload-bytes-across-pp-ranks min-offloaded-tensor-size
        ddp-param-name-patterns-for-fp32-local-accumulation
        ddp-reduce-scatter-with-fp32-accumulation delay-wgrad-compute distribute-saved-activations
        ep-overlap-early-attn-memory-release fp16-lm-cross-entropy
        fused-residual-rmsnorm mla-down-proj-fusion moe-apply-probs-on-input no-bias-swiglu-fusion
        overlap-dispatch-backward-with-experts-wgrad qk-l2-norm use-kitchen-attention
        use-te-activation-func use-transformer-engine-op-fuser
    """,
    _BUFFER: """
        expert-tensor-parallel-num-weight-shards fp32-residual-connection fsdp-db-use-persist-buf-on-alloc-fail
        fsdp-double-buffer fsdp-manual-registration keep-fp8-transpose-cache moe-paged-stash
        moe-pad-expert-input-to-capacity moe-expert-rank-capacity-factor megatron-fsdp-enable-*
        megatron-fsdp-max-pool-double-buffer tensor-parallel-num-weight-shards use-nccl-ub enable-full-sharding-in-hsdp
        fp32-lm-cross-entropy
    """,
    _GRAPHS: "cuda-graph-impl enable-cuda-graph external-cuda-graph",
    "memory: stages hold other layers than here (parallel.first_stage_layers, parallel.last_stage_layers)": """
        pipeline-model-parallel-split-rank-* standalone-embedding-stage mtp-standalone
        num-layer-list
    """,
    "memory: torch's FSDP2 shards there; parallel=fsdp is its like here": "use-torch-fsdp2",
    "memory and maths: its products are in other formats than here": """
        te-precision-config-file fp8-e4m3 fp8-hybrid-*
    """,
    f"{_WEIGHTS}: experts are made of a dense checkpoint there": "moe-use-upcycling",
    f"{_WEIGHTS}: the weights here begin as those of every engine (model.initializer_range)": """
        data-parallel-random-init embedding-init-method-std init-method-xavier-uniform
    """,
    _BATCHES: """
        data-efficiency-* curriculum-* dataloader-type hybrid-context-parallel iterations-to-skip
        max-seqlen-per-dp-cp-rank phase-transition-iterations sample-rate train-doc-idx-path train-idx-path
        train-sample-idx-path train-shuffle-idx-path train-desc-path skip-train-iteration-range return-data-index
        train-weighted-split-paths* valid-weighted-split-paths* test-weighted-split-paths*
    """,
    f"{_RAMPED}, as in Megatron-LM 0.19.2, which ignores it; an earlier one begins with smaller ones": """
        rampup-batch-size
    """,
    f"{_RAMPED}, and grow there by this schedule": "step-batch-size-schedule",
    _MASKS: """
        dataloader-inter-document-masking eod-mask-loss reset-attention-mask reset-position-ids
        reweight-loss-based-on-position-frequency loss-on-targets-only noise-density mean-noise-span-length
    """,
    "the data: fill in the middle": "fim-data",
    "the data: conversations there; data=chat reads them here": "sft",
    "the maths: it learns from another model's logits": "logits-load-dir kd kd-* load-teacher mos",
    _DEEPSPEED: """
        deepspeed deepspeed-activation-checkpointing random-ltd compression-training ds-* hybrid-zero-*
        pipeline-model-parallel-* cpu-torch-adam create-moe-param-group moe-train-capacity-factor
        moe-eval-capacity-factor moe-min-capacity moe-loss-coeff moe-expert-parallel-size mlp-type topk
        enable-expert-tensor-parallelism no-pipeline-parallel
    """,
    "batches, ZeRO and formats of that file are not read here: launch import deepspeed reads it": """
        deepspeed-config deepscale-config
    """,
    "memory: the states of its optimizer are in 8 bits there": "use-bnb-optimizer",
    "memory: a part of the optimizer's states stays on the GPU there": "optimizer-offload-fraction",
    "memory: nothing here counts its layers": "transformer-impl",
    "memory: it has buffers, formats or shards there that nothing here counts": """
        disable-fp8-wgrad fp8-output-proj no-fp8-wgrad no-use-layer-wise-param-layout outer-dp-sharding-strategy
        suggested-communication-unit-size
    """,
    "memory: experts take more tokens than an even share": "moe-expert-capacity-factor",
    f"{_MODEL}: attention has a weight more for each head": "softmax-type",
})
"""Arguments that change the maths, the memory or the data, and that the run does not have, by what differs."""

DEFAULTS: Mapping[str, object] = {
    "add-position-embedding": True, "cross-entropy-fusion-impl": "native", "cuda-graph-impl": "none",
    "dataloader-type": "single", "distributed-backend": "nccl", "exit-signal-handler": True, "moe-router-dtype": "fp32",
    "moe-token-dispatcher-type": "alltoall", "optimizer-offload-fraction": 1.0,
    "outer-dp-sharding-strategy": "no_shard", "transformer-impl": "transformer_engine", "softmax-type": "vanilla",
    "vocab-extra-ids": 0,
}  # fmt: skip
"""Values with which a run here is what it is without them, whatever else the argument can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The meaning of an argument: with an effect it is left out, without one the engine has it."""

    effect: str | None = None
    matters: bool = False


def by_value(name: str, values: Mapping[str, object]) -> Meaning | None:
    """The meaning of an argument whose value decides, among the values of all; None where its name does."""
    value, capacity = values[name], values.get("moe-expert-capacity-factor")
    even = isinstance(capacity, int | float) and capacity <= 1
    kept = {
        "transformer-impl": value == "local",
        "moe-router-dtype": True,
        "moe-expert-capacity-factor": even,
        "moe-pad-expert-input-to-capacity": even,
    }
    return Meaning() if kept.get(name) else None


MEANINGS = ByName((
    *((name, Meaning()) for name in KEPT),
    *((name, Meaning(effect=effect)) for effect, names in NO_EFFECT.items() for name in names),
    *((name, Meaning(effect=effect, matters=True)) for effect, names in MATTERS.items() for name in names),
))  # fmt: skip
"""The meaning of each argument that is known."""
