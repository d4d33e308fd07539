"""The implementation that runs under DeepSpeed, as far as memory depends on it."""

from launcher.backends._shared import LAUNCH_SECONDS, copies_output, key_heads, masks_documents, unfused_attention
from launcher.backends.deepspeed.partition import swapping
from launcher.base.units import DTYPE_BYTES
from launcher.estimate.rank.engine import Copies, EngineTraits, Execution, Saving
from launcher.estimate.rank.formats import Dtypes, beside_master
from launcher.spec import RunSpec
from launcher.spec.values import beside_products

_HOOKS = 0.67e-3
"""Host seconds of stage 3's hooks around a weight's module in a pass, which fetch, trace and release parameters: fitted
on two runs of ``benchmarks/results/gpu.json`` that wait for the host, of 144 weights; that of 288 is 7% high."""

_SCALE = 4 / 8000
"""Bytes of the scale of an element that is quantized: fp32, of some 8,000 elements (``CUDAQuantizer``)."""


def engine(spec: RunSpec) -> EngineTraits:
    """Hugging Face modules cast as a whole to the compute format; flat buffers cut evenly.

    Ulysses keeps attention's output with all tokens of some heads, for attention, and with all heads of some tokens,
    for the output projection. ZeRO 3's linears are ``LinearFunctionForZeroStage3`` (runtime/zero/linear.py), whose
    ``setup_context`` saves the input after ``forward``; those of adapters and AutoTP are torch's own products.
    """
    meaning = dtypes(spec)
    size = DTYPE_BYTES[beside_products(meaning.compute)]
    return EngineTraits(
        library="transformers",
        size=size,
        residual_size=size,
        sequence_length=spec.sequence_length,
        one_sequence=spec.micro_batch_size == 1,
        scores=spec.model.attention == "eager",
        unfused_attention=unfused_attention(spec),
        exchanged_heads=spec.parallel.ulysses > 1,
        cpu=spec.hardware.device == "cpu",
        scan_kernels=spec.hardware.device != "cpu",
        attention_copy=spec.parallel.ulysses > 1 or copies_output(spec),
        key_heads=key_heads(spec),
        documents_mask=masks_documents(spec),
        gradients_leave=spec.zero.stage >= 2 and spec.zero.offload_optimizer != "none",
        gradients_stay=spec.zero.stage == 3 or flat_fp32_gradients(spec),
        kept_whole=spec.zero.param_persistence_threshold if spec.zero.stage == 3 else 0,
        saves_after_products=spec.zero.stage == 3 and spec.adapter.name == "none" and spec.parallel.tensor == 1,
        grouped_experts=True,
        whole_embedding=True,
        partition_buffer=buffers_partition(spec),
        further_groups=1,  # ``deepspeed/utils/groups.py``, ``_clone_world_group``.
        flat_states=True,
        # ``__allgather_stream`` and ``reduce_and_partition_stream`` of stage3.py.
        own_streams=("gather_buffers", "reduce_buffers") if spec.zero.stage == 3 else (),
        swapping=swapping(spec),
        saving=Saving(files=True),
        fused_norm=spec.train.kernels == "liger",
        fused_activation=spec.train.kernels == "liger",
    )


def flat_fp32_gradients(spec: RunSpec) -> bool:
    """True if BF16_Optimizer runs: bf16 with fp32 accumulation, ZeRO 1, nothing offloaded (``runtime/engine.py``)."""
    meaning = dtypes(spec)
    formats = (meaning.parameters, meaning.accumulate) == ("bf16", "fp32")
    return formats and spec.zero.stage == 1 and spec.zero.offload_optimizer == "none"


def buffers_partition(spec: RunSpec) -> bool:
    """True if ZeRO 1 or 2 copies the gradients of a rank's partition; offloaded ones go to the host."""
    zero = spec.zero
    return zero.stage in (1, 2) and not flat_fp32_gradients(spec) and zero.offload_optimizer == "none"


def execution(spec: RunSpec) -> Execution:
    """Eager transformers; ZeRO's hooks run in Python around each module.

    Below stage 3 nothing overlaps unless it is asked for (``deepspeed/runtime/zero/config.py``, ``overlap_comm``), and
    without ZeRO and in a pipeline gradients are reduced after the backward pass (``runtime/engine.py``). Stages 1 and 2
    all-reduce each bucket whole (``use_multi_rank_bucket_allreduce``, ``runtime/zero/stage_1_and_2.py``), and so does
    BF16_Optimizer (``buffered_allreduce_fallback``).
    """
    zero = spec.zero
    overlaps = zero.stage == 3 if zero.overlap_comm is None else zero.overlap_comm
    return Execution(
        framework="DeepSpeed",
        related=("Hugging Face Trainer", "llm-foundry"),
        masked=masks_documents(spec),
        attention={"flash": "flash_2", "sdpa": "sdpa", "eager": "unfused"}[spec.model.attention],  # type: ignore[arg-type]
        reduces_each=zero.stage >= 2,
        reduces_whole=zero.stage in (1, 2),
        copies=_copies(spec),
        launch_seconds=LAUNCH_SECONDS,
        hook_seconds=_HOOKS if zero.stage == 3 else 0.0,
        gathered_size=1 + _SCALE if zero.quantized_weights else None,
        exchanged_size=0.5 + _SCALE if zero.quantized_gradients else None,
        fused_loss=spec.train.loss == "fused",
        fused_norm=spec.train.kernels == "liger",
        fused_rotary=spec.train.kernels == "liger",
        fused_activation=spec.train.kernels == "liger",
        compiled=spec.train.compile,
        gradient_overlap=overlaps and zero.stage > 0 and spec.parallel.pipeline == 1,
        parameter_overlap=overlaps and zero.stage == 3,
        bucket_bytes=float(zero.reduce_bucket_size * DTYPE_BYTES[dtypes(spec).reduce]),
    )


def _copies(spec: RunSpec) -> Copies:
    """The kind of copies that the run's ZeRO stage makes; none for BF16_Optimizer and for states on the host."""
    if spec.zero.stage == 0 or flat_fp32_gradients(spec) or spec.zero.offload_optimizer != "none":
        return "none"
    return "zero_3" if spec.zero.stage == 3 else "zero_1_2"


def dtypes(spec: RunSpec) -> Dtypes:
    """Parameters, gradients and their reduction in the word's format, fp32 master and moments (docs/engines.md).

    ``accumulate`` is DeepSpeed's own default for ``data_types.grad_accum_dtype``: the model's format.
    """
    held = beside_products(spec.precision.compute)
    return beside_master(spec.precision, held, gradients=held)
