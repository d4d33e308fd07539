"""The engine under TRL, which accelerate runs, and its implementation, as far as memory and speed depend on it.

It is FSDP2, DDP or DeepSpeed, by the preset. Formats, buffers and limits of sharding come from the backends ``fsdp``
and ``deepspeed``, since it is the same torch and the same DeepSpeed; :func:`as_engine` is the run passed to them.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Literal

from launcher.backends import Backend
from launcher.base import registry
from launcher.base.units import DTYPE_BYTES
from launcher.estimate.rank.engine import EngineTraits, Execution, LogitsBytes, Saving
from launcher.estimate.rank.formats import Dtypes
from launcher.spec import Dtype, RunSpec, edit

type Engine = Literal["fsdp", "ddp", "deepspeed"]


def engine_of(spec: RunSpec) -> Engine:
    """The engine that accelerate runs: FSDP2 for sharded parameters, DeepSpeed for other ZeRO stages, else DDP."""
    if spec.parallel.shard:
        return "fsdp"
    return "deepspeed" if spec.zero.stage else "ddp"


def backend_of(spec: RunSpec) -> Backend:
    """The backend of that engine."""
    found: Backend = registry.load("backends", "deepspeed" if engine_of(spec) == "deepspeed" else "fsdp")
    return found


def as_engine(spec: RunSpec) -> RunSpec:
    """The same run as its engine sees it, without TRL's own arguments.

    accelerate leaves ``DistributedDataParallel`` at its defaults: gradients are not views of the 25 MiB buckets. It has
    no key for the format of a reduction, and the adapter determines the format that a base is loaded in.
    """
    name = "deepspeed" if engine_of(spec) == "deepspeed" else "fsdp"
    settings: dict[str, object] = {"backend.name": name, "backend.extra": {}}
    if engine_of(spec) == "ddp":
        settings["backend.bucket_view"] = False
        low, formats = spec.precision.parameters, ("gradients", "accumulate", "optimizer_states", "reduce")
        settings |= {f"precision.{name}": low for name in formats if low}
    return edit.changed_at(spec, settings)


def loaded(spec: RunSpec) -> Dtype:
    """The format of the loaded weights: fp32 or as configured if they are trained, else the compute format.

    DeepSpeed casts the model and keeps fp32 copies itself; with an adapter the model itself is not trained, and
    ``peft`` makes the adapter in fp32 (``autocast_adapter_dtype``).
    """
    trained = spec.adapter.name == "none" and engine_of(spec) != "deepspeed"
    return spec.precision.parameters or "fp32" if trained else spec.precision.compute


def _loads(spec: RunSpec) -> int:
    """Host bytes per parameter on each rank that loads the whole model, and a reference model.

    ``create_model_from_path`` of ``trl/trainer/utils.py`` names no device where ranks are several, and every rank of
    FSDP2 reads all weights (transformers 5.23, ``_load_pretrained_model``). Those that are loaded as they lie in the
    files stay mapped, and take nothing: 16 bits in ``model.weights``, fp32 where the run writes its own. Under ZeRO 3
    the first rank alone reads, and bitsandbytes packs each weight on its GPU.
    """
    size = DTYPE_BYTES[loaded(spec)]
    filed = DTYPE_BYTES["fp32" if spec.model.weights is None else "bf16"]
    if size == filed or (spec.zero.stage == 3 and not spec.parallel.shard) or spec.adapter.bits:
        return 0
    return size * (2 if spec.task.has_reference and spec.adapter.name == "none" else 1)


TILE = (4096, 32768)
"""Tokens and vocabulary entries of the logits that TRL's loss holds at once (``TOKEN_CHUNK_SIZE`` of
``trl/kernels/chunked_logprob.py``, ``_CHUNKED_LOGPROB_CHUNK_SIZE`` of ``trl/trainer/utils.py``)."""

SOURCE = "trl/kernels/chunked_logprob.py, ChunkedLogProbFunction"


def dtypes(spec: RunSpec) -> Dtypes:
    """The engine's formats, except that accelerate's FSDP2 reduces in the compute format and a frozen base is 16-bit.

    ``FullyShardedDataParallelPlugin.set_mixed_precision`` of accelerate 1.15 sets ``reduce_dtype`` as ``param_dtype``.
    With a quantised base the trainers convert an adapter to bf16 (``SFTTrainer.__init__`` of TRL 1.16).
    """
    found = backend_of(spec).dtypes(as_engine(spec))
    if engine_of(spec) == "deepspeed":
        return found
    low: Dtype = spec.precision.compute
    if engine_of(spec) == "fsdp":
        found = replace(found, reduce=low)
    if spec.adapter.bits:
        found = replace(found, gradients="bf16", accumulate="bf16", reduce="bf16", optimizer_states="bf16")
    return found if spec.adapter.name == "none" else replace(found, parameters=low)


def engine(spec: RunSpec) -> EngineTraits:
    """The engine's own modules with TRL's loss, which computes logits for some tokens and words at a time."""
    found = backend_of(spec).engine(as_engine(spec))
    optimizer = "fused" if spec.optimizer.fused or spec.hardware.device == "cuda" else found.optimizer
    saving = Saving(
        weights=engine_of(spec) == "deepspeed" and spec.zero.stage < 3,  # ``DeepSpeedEngine._save_checkpoint``
        files=engine_of(spec) == "deepspeed",
        exports_whole=True,  # ``Accelerator.get_state_dict``, or ``save_file`` of safetensors with a GPU's tensors.
    )
    found = replace(found, logits=tile(spec), optimizer=optimizer, saving=saving, loads=_loads(spec))
    low = spec.adapter.name != "none" or spec.precision.parameters == "bf16"
    if engine_of(spec) != "deepspeed" and low:  # 16-bit weights are not cast.
        wide = found.autocast and not spec.adapter.bits
        return replace(found, autocast=False, residual_size=found.size, wide_adapters=wide)
    return found


def tile(spec: RunSpec) -> LogitsBytes:
    """Bytes of the loss per vocabulary entry and token, for one tile in the compute format.

    The tile has the same width for any vocabulary. A kernel folds it into sums and turns it into its gradient in place.
    Without Triton, as on a CPU, torch's operations also hold fp32 tensors of the tile's part of the vocabulary: three
    in the forward pass and five in the backward pass. A reward model has one output and no logits.
    """
    if spec.task.name == "reward":
        return LogitsBytes(output=0, loss=0, backward=0, source="trl/trainer/reward_trainer.py")
    size, words = DTYPE_BYTES[spec.precision.compute], spec.model.vocab_size
    tokens = spec.sequences_at_once * spec.sequence_length
    part = Fraction(min(TILE[0], tokens), tokens)
    buffer, used = part * Fraction(TILE[1], words), part * Fraction(min(TILE[1], words), words)
    loss, backward = (12, 20) if spec.hardware.device == "cpu" else (0, 0)
    return LogitsBytes(
        output=0, loss=size * buffer + loss * used, backward=size * buffer + backward * used, source=SOURCE
    )


def execution(spec: RunSpec) -> Execution | None:
    """How the engine executes a step; None for steps with generation, which are not modelled."""
    return None if spec.task.name == "grpo" else backend_of(spec).execution(as_engine(spec))
