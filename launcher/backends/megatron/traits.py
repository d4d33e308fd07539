"""The implementation that runs under Megatron-LM, as far as memory depends on it."""

from fractions import Fraction
from math import ceil

from launcher.backends.megatron.implementation import dtypes, fsdp, implementation, reads_gradients_as_they_are, recipe
from launcher.backends.megatron.quantised import quantised
from launcher.base.units import DTYPE_BYTES
from launcher.estimate.rank.engine import (
    EXPERT_OVERLAP,
    UNEVEN,
    AttentionKernel,
    Dispatcher,
    EngineTraits,
    Execution,
    LogitsBytes,
    Saving,
)
from launcher.estimate.rank.recomputed import dropped_parts
from launcher.spec import BackendSpec, RunSpec

VOCABULARY_MULTIPLE = 128
"""Megatron-LM's default of ``--make-vocab-size-divisible-by``, times the tensor-parallel degree."""


def engine(spec: RunSpec) -> EngineTraits:
    """Megatron-core's modules; gradients live in one permanent buffer; the loss is vocabulary-parallel."""
    meaning, how = dtypes(spec), implementation(spec)
    cpu = spec.hardware.device == "cpu"
    # With fp8 products everything else is in the parameters' format.
    size = DTYPE_BYTES[meaning.parameters if recipe(spec) else meaning.compute]
    return EngineTraits(
        library="megatron",
        size=size,
        residual_size=size,
        quantised=quantised(spec),
        unfused=cpu,
        # torch's RMSNorm saves its input and the normalised values in fp32: seen by saved-tensor hooks on a layer.
        unfused_norm=2 * 4 - size if cpu and spec.model.normalization == "rmsnorm" else 0,
        weighting=how.grouped and spec.backend.argument("use-fused-weighted-squared-relu") is True,
        rotary=_rotary(spec, size, fused=_fuses_rotation(spec, own=not how.transformer_engine)),
        key_heads=None if how.transformer_engine else spec.model.num_attention_heads,
        core_inputs="core_attention" in dropped_parts(spec.checkpointing),
        causal_mask=-(-spec.sequence_length // spec.micro_batch_size) if _masks(spec) and not how.attention_mask else 0,
        sequence_length=spec.sequence_length,
        scores=how.attention == "unfused",
        softmax_size=4 if how.wide_softmax else None,
        attention_copy=_attention_copy(spec),
        expert_outputs=how.deterministic and not spec.backend.argument("moe-permute-fusion"),
        cpu=cpu,
        scan_kernels=True,
        vocabulary_multiple=vocabulary_multiple(spec) * spec.parallel.tensor,
        gradients_stay=True,
        states_in_buffers=True,
        further_groups=None,
        vocabulary_parallel=True,
        master_size=_master_size(spec),
        saving=_saving(spec),
        optimizer="fused" if how.fused_optimizer else "loop" if spec.hardware.device == "cpu" else "foreach",
        logits=_logits_in_place(size) if spec.backend.argument("cross-entropy-fusion-impl") == "te" else None,
    )


def _fuses_rotation(spec: RunSpec, *, own: bool) -> bool:
    return not spec.backend.argument("no-rope-fusion", default=own or spec.model.kv_lora_rank > 0)


def _rotary(spec: RunSpec, size: int, *, fused: bool) -> int:
    """Bytes of cosines and sines, for queries and again for keys, of all sequences; 0 if a kernel rotates."""
    rotates = spec.model.position_embedding == "rope" and not fused
    return ceil(Fraction(4 * size, spec.micro_batch_size)) if rotates else 0


def _masks(spec: RunSpec) -> bool:
    """True if Megatron-core's own attention masks scores by an operation of torch (``fusions/fused_softmax.py``)."""
    own = not implementation(spec).transformer_engine
    return own and bool(spec.backend.argument("no-masked-softmax-fusion", default=True))


def _attention_copy(spec: RunSpec) -> bool:
    """True if attention's output is copied: by flash-attn for several sequences, and by whole exchanges over context.

    With ``--cp-comm-type a2a`` the kernel's output is saved, and so is what the exchange back makes of it
    (Transformer Engine ``attention/dot_product_attention/context_parallel.py``, ``AttnFuncWithCPAndQKVOA2A``).
    """
    flash = implementation(spec).attention == "flash" and spec.micro_batch_size > 1
    return flash or (spec.parallel.context > 1 and spec.backend.argument("cp-comm-type") in ("a2a", "all_gather"))


def _logits_in_place(size: int) -> LogitsBytes | None:
    """Bytes of the logits under Transformer Engine's fused loss, which overwrites them with their gradient."""
    source = "Transformer Engine pytorch/triton/cross_entropy.py"
    return LogitsBytes(output=size, loss=size, backward=size, source=source)


def _master_size(spec: RunSpec) -> int | None:
    """Bytes of a master weight: with bf16 parameters the precision-aware optimizer keeps only the missing 16 bits.

    ``store_param_remainders`` (``optimizer/distrib_optimizer.py``, Transformer Engine 2.1 on). Megatron-FSDP keeps all
    32 bits in a buffer.
    """
    meaning = dtypes(spec)
    halves = (meaning.parameters, meaning.master) == ("bf16", "fp32")
    return 2 if halves and reads_gradients_as_they_are(spec) and not fsdp(spec) else None


def _saving(spec: RunSpec) -> Saving:
    """How a rank saves: it gathers the distributed AdamW's fully reshardable form bucket by bucket.

    ``sharded_param_state_fully_reshardable`` of ``optimizer/distrib_optimizer.py``. Where the reduction of gradients
    waits for the backward pass a buffer is one bucket (``resolve_ddp_bucket_size`` of ``training/training.py``).
    Replicas split what they write (``core/dist_checkpointing/strategies/fully_parallel.py``), and a rank copies all
    that it writes to the host at once (``filesystem_async.py``); Megatron-FSDP's states go tensor by tensor. A rank
    on a GPU keeps a process that writes in the background (``PersistentAsyncCaller.async_loop``, ``async_utils.py``).
    """
    overlaps, own = spec.backend.argument("overlap-grad-reduce", True), Fraction(0 if fsdp(spec) else 1)
    own = own if spec.zero.stage else own / spec.shard_degree
    writer, bucket = spec.save.asynchronous and spec.hardware.device == "cuda", _bucket(spec) if overlaps else None
    return Saving(own=own, gathers=reshardable(spec), bucket=bucket, writer=writer)


def reshardable(spec: RunSpec) -> bool:
    """True if shards of the optimizer are saved as whole tensors, which other tensor and pipeline degrees can read.

    By default they are if :func:`reads_shards` is false.
    """
    asked = not reads_shards(spec) if spec.save.reshardable is None else spec.save.reshardable
    return asked and spec.zero.stage == 1 and spec.optimizer.name == "adamw"


def reads_shards(spec: RunSpec) -> bool:
    """True if Megatron-core 0.19 reads the optimizer's shards back as they were.

    Shards of fp32 parameters are views of the parameters, and copying into them fails. The step count in the states of
    torch's AdamW is lost, so the first steps of a resumed run differed from those of an uninterrupted run.
    """
    return implementation(spec).fused_optimizer and dtypes(spec).parameters != "fp32"


def vocabulary_multiple(spec: RunSpec) -> int:
    """The number that a tensor-parallel rank's rows are a multiple of: ``--make-vocab-size-divisible-by``."""
    return spec.backend.count("make-vocab-size-divisible-by") or VOCABULARY_MULTIPLE


def execution(spec: RunSpec) -> Execution:
    """Megatron-core's layers, with Transformer Engine's kernels where they run.

    In Megatron-core's own modules a norm is one torch kernel (``WrappedTorchNorm``), the rotary embedding is several,
    and scores are masked in place (``transformer/dot_product_attention.py``) before torch's softmax, unless its kernels
    are enabled.
    """
    how, backend = implementation(spec), spec.backend
    own = not how.transformer_engine
    attention: AttentionKernel = "fused_softmax" if how.attention == "unfused" else "flash"
    if _masks(spec):
        attention = "unfused" if how.wide_softmax else "masked_in_place"
    return Execution(
        framework="Megatron-Core",
        related=("NeMo", "Megatron-Bridge"),
        attention=attention,
        fused_projections=True,
        fused_norm=True,
        fused_rotary=_fuses_rotation(spec, own=own),
        fused_activation=not (backend.argument("no-bias-swiglu-fusion") or backend.argument("no-bias-gelu-fusion")),
        fused_residual=not backend.argument("no-bias-dropout-fusion"),
        fused_loss=spec.train.loss == "fused",
        graphs=bool(backend.argument("enable-cuda-graph") or backend.argument("cuda-graph-impl")),
        tensor_overlap=0.75 if backend.argument("tp-comm-overlap") else 0.0,
        gradient_overlap=bool(backend.argument("overlap-grad-reduce", True)),
        parameter_overlap=spec.zero.stage > 0 and bool(backend.argument("overlap-param-gather", True)),
        bucket_bytes=4.0 * _bucket(spec),  # Of fp32 gradients.
        reduces_each=fsdp(spec),
        pipeline_overlap=spec.parallel.virtual_pipeline > 1 and not backend.argument("no-overlap-p2p-communication"),
        fused_accumulation=how.fused_gradients,
        fused_optimizer=how.fused_optimizer,
        blockwise_experts=not how.grouped,
        dispatcher=dispatcher(backend),
        uneven_experts=1.0 if backend.argument("moe-router-force-load-balancing") else UNEVEN,
        expert_overlap=EXPERT_OVERLAP if backend.argument("overlap-moe-expert-parallel-comm") else 0.0,
        fused_permutation=bool(backend.argument("moe-permute-fusion")),
    )


def _bucket(spec: RunSpec) -> int:
    """Parameters per bucket: ``--ddp-bucket-size``, by default the larger of 40 million and a million per data rank.

    ``megatron/core/distributed/distributed_data_parallel.py``.
    """
    return spec.backend.count("ddp-bucket-size") or max(40_000_000, 1_000_000 * spec.data_degree)


def dispatcher(backend: BackendSpec) -> Dispatcher:
    """The token dispatcher: ``flex`` is DeepEP's unless it names HybridEP (``megatron/training/arguments.py``)."""
    if backend.argument("moe-token-dispatcher-type") == "flex" or backend.argument("moe-enable-deepep"):
        return "hybridep" if backend.argument("moe-flex-dispatcher-backend") == "hybridep" else "deepep"
    return "all_gather" if backend.argument("moe-token-dispatcher-type") == "allgather" else "all_to_all"
