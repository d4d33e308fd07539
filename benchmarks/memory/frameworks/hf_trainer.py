"""The Hugging Face Trainer on one GPU or with FSDP1 (accelerate), as a backend that is only checked.

The model is loaded in 16 bits. Trained as a whole without FSDP's mixed precision its gradients and both moments of
AdamW are 16-bit too (8 bytes a parameter and 2 in the step); with it accelerate casts what is trained to fp32. ``peft``
holds adapters in fp32 beside a 16-bit base. Recomputation is reentrant, which holds a recomputed block's output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from launcher.backends.trl.overheads import adapters, last_hidden_state
from launcher.estimate.memory import states
from launcher.estimate.memory.estimate import Backend
from launcher.estimate.memory.moments import ALWAYS, BACKWARD_FROM_BLOCKS, LOSS, ROOT_BACKWARD, Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.engine import EngineTraits, LogitsBytes
from launcher.estimate.rank.formats import Dtypes
from launcher.estimate.rank.model import NF4_BITS, RankModel
from launcher.spec import Dtype, RunSpec

type Version = tuple[int, ...]

GPTQ_BITS = 4 + Fraction(16 + 4, 128)
"""Bits of a weight: 4, and a 16-bit scale and a 4-bit zero for each group of 128 (AutoGPTQ, ``group_size=128``)."""

_FSDP = "torch/distributed/fsdp/_flat_param.py and _runtime_utils.py"
_CHECKPOINT = "torch/utils/checkpoint.py, CheckpointFunction"
_BACKWARD: Moments = frozenset(("block_backward", "next_block_backward", "second_layer_backward"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HfTrainer(Backend):
    """One way to run the Trainer.

    Attributes:
        version: Of ``transformers``, whose loss and attention changed.
        fsdp: Whether FSDP1 shards the model.
        mixed: Whether it runs under autocast or FSDP's mixed precision.
        fast_kernels: Whether RMSNorm, rotary embedding and cross entropy are Unsloth's kernels.
        fused_adapters: Whether the adapters are Unsloth's operations.
        repeats_keys: Whether the model's flash attention copies keys and values to every query head.
        gptq: Whether the quantised weights are GPTQ's, not NF4.
        low_adapters: Whether adapters are 16-bit as their base is, not fp32 as ``peft`` makes them.
        names_output: Whether the loop names the model's output until the backward pass is through (fsdp_qlora's
            train.py, ``output = model(...)``), and so its fp32 logits.
        upcast: Whether ``peft.prepare_model_for_kbit_training`` cast the norms, and so the residual stream, to fp32.
    """

    framework: ClassVar[str] = "HfTrainer"

    version: Version
    fsdp: bool = False
    mixed: bool = False
    fast_kernels: bool = False
    fused_adapters: bool = False
    repeats_keys: bool = False
    gptq: bool = False
    low_adapters: bool = False
    names_output: bool = False
    upcast: bool = False

    def dtypes(self, spec: RunSpec) -> Dtypes:
        """16-bit weights; fp32 where an adapter is trained, or all of it under FSDP's mixed precision."""
        low: Dtype = spec.precision.compute
        adapted = spec.adapter.name != "none" and not self.low_adapters
        held: Dtype = "fp32" if adapted or (self.fsdp and self.mixed) else low
        return Dtypes(
            parameters=low if adapted else held,
            compute=low,
            gradients=low,
            accumulate=held,
            master=None,
            optimizer_states=held,
            reduce=low,
        )

    def engine(self, spec: RunSpec) -> EngineTraits:
        """Modules of ``transformers`` in 16 bits with a foreach AdamW."""
        return EngineTraits(
            library="transformers",
            size=2,
            residual_size=4 if self.upcast else 2,
            sequence_length=spec.sequence_length,
            scores=spec.model.attention == "eager",
            optimizer="foreach",
            fused_norm=self.fast_kernels,
            key_heads=spec.model.num_attention_heads if self.repeats_keys else None,
            fused_adapters=self.fused_adapters,
            # bitsandbytes and GPTQ cast the input of a quantised layer themselves.
            wide_adapters=not (self.low_adapters or spec.adapter.bits or (self.fsdp and self.mixed)),
            logits=causal_loss(self.version, fast=self.fast_kernels),
            # FSDP1's ``_unshard_stream`` and ``_post_backward_stream`` (torch ``distributed/fsdp/_runtime_utils.py``).
            own_streams=("gather_buffers", "gradients") if spec.parallel.shard else (),
        )

    def overheads(self, rank: RankModel) -> Iterator[MemoryTerm]:
        """Terms that adapters, recomputation and FSDP1 add."""
        if not self.low_adapters:
            yield from adapters(rank)
        yield from recomputed_output(rank)
        if rank.spec.adapter.name != "none":
            yield from last_hidden_state(rank)
        if self.names_output:
            what, v, tok = "logits of the model, in fp32", rank.vocabulary, rank.tokens
            yield term("logits", BACKWARD_FROM_BLOCKS, what, "4 * V * tok", "fsdp_qlora train.py", V=v, tok=tok)
        if self.gptq:
            yield from gptq_scales(rank)
        if self.fsdp:
            if not self.gptq:
                yield from states.constants(rank)
            yield from gathered(rank)
            yield from unsharded_gradients(rank)
            yield from retained_inputs(rank)
        elif rank.elements.trained:
            yield largest_gradient(rank)


def causal_loss(version: Version, *, fast: bool) -> LogitsBytes:
    """``transformers``' loss: fp32 logits, a shifted copy of them, log-softmax; from 4.46 on beside the 16-bit logits.

    Before 4.46 the model casts its logits and drops the others; from 4.50 on the labels are shifted, not the logits.
    Unsloth's cross entropy keeps no log-softmax and turns the logits into their own gradient.
    """
    own = 0 if version < (4, 46) else 2
    shifted = 4 if version < (4, 50) else 0
    softmax = 0 if fast else 4
    return LogitsBytes(
        output=6 if own == 0 else 2,
        loss=own + 4 + shifted + softmax,
        backward=8 if fast else 12,
        source="transformers models/*/modeling_*.py before 4.46, loss/loss_utils.py since",
    )


def recomputed_output(rank: RankModel) -> Iterator[MemoryTerm]:
    """The output of the block that is recomputed."""
    if rank.spec.checkpointing.mode == "full":
        h, what = rank.spec.model.hidden_size, "output of the recomputed block"
        yield term("activations", _BACKWARD, what, "2 * h * tok", _CHECKPOINT, h=h, tok=rank.tokens)


def gptq_scales(rank: RankModel) -> Iterator[MemoryTerm]:
    """Bytes that GPTQ's scales and zeros take more than NF4's constants."""
    bits, w = GPTQ_BITS - NF4_BITS[rank.spec.adapter.double_quant], rank.elements.quantised_parameters
    source = "AutoGPTQ nn_modules/qlinear"
    yield term("parameters", ALWAYS, "scales beyond NF4's constants", "bits * w / 8", source, bits=bits, w=w)


def gathered(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gathered parameters: the root unit from its forward to the end of its backward, and the running block."""
    root, block = rank.compute_parameters(rank.root), rank.compute_parameters(rank.largest_block)
    z, what = rank.engine.size, "gathered root unit"
    yield term("gather_buffers", LOSS | ROOT_BACKWARD, what, "z * root", _FSDP, z=z, root=root)
    what = "gathered root unit and block"
    yield term(
        "gather_buffers", {*_BACKWARD, "forward"}, what, "z * (root + block)", _FSDP, z=z, root=root, block=block
    )


def unsharded_gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """The output projection's gradient until the root unit's are complete, and one weight's of the block that runs."""
    z, head, w = rank.engine.size, rank.root.largest_trained, rank.largest_block.largest_trained
    what = "gradients of single weights"
    yield term("reduce_buffers", _BACKWARD, what, "z * (head + w)", _FSDP, z=z, head=head, w=w)
    what = "gradients of the root unit, one by one and flat"
    yield term("reduce_buffers", ROOT_BACKWARD, what, "2 * z * root", _FSDP, z=z, root=rank.root.trained)


def retained_inputs(rank: RankModel) -> Iterator[MemoryTerm]:
    """Units without a trained weight keep their inputs and those inputs' gradients until the backward pass ends.

    ``_register_post_backward_reshard_only_hook`` hooks the inputs of such a unit; under reentrant recomputation these
    are the checkpoints: at the first block ``2 (L - 2)`` of them beyond those that are needed.
    """
    if rank.spec.adapter.name != "none" and rank.spec.checkpointing.mode == "full":
        what, h = "inputs of all blocks and their gradients", rank.spec.model.hidden_size
        values = {"L": rank.layers, "h": h, "tok": rank.tokens}
        yield term("activations", ("second_layer_backward",), what, "2 * (L - 2) * 2 * h * tok", _FSDP, **values)


def largest_gradient(rank: RankModel) -> MemoryTerm:
    """The gradient of the largest weight while it is computed."""
    z, w = rank.engine.size, max(rank.largest_block.largest_trained, rank.root.largest_trained)
    return term("temporary", _BACKWARD, "gradient of one weight", "z * w", "torch AccumulateGrad", z=z, w=w)
