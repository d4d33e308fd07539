"""Megatron-LM of May 2021, which trained fp16 on V100: torch's DistributedDataParallel, apex' Adam, scores in full.

Twenty bytes a parameter after a step: fp16 parameters, fp32 copies, two moments, the fp32 gradients of the last step,
which ``zero_grad`` leaves alone, and the fp16 buckets of DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from launcher.backends.megatron.overheads import embedding_dropout, last_inputs
from launcher.backends.megatron.traits import VOCABULARY_MULTIPLE
from launcher.estimate.memory.estimate import Backend
from launcher.estimate.memory.moments import BEFORE_BLOCKS_BACKWARD, TRAINING, Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.formats import Dtypes
from launcher.estimate.rank.model import RankModel
from launcher.spec import RunSpec

_FORMATS = Dtypes(
    parameters="fp16",
    compute="fp16",
    gradients="fp16",
    accumulate="fp16",
    master="fp32",
    optimizer_states="fp32",
    reduce="fp16",
)
_BLOCKS: Moments = frozenset(("block_backward", "next_block_backward", "second_layer_backward"))
_PASSES: Moments = _BLOCKS | BEFORE_BLOCKS_BACKWARD
_STEP: Moments = frozenset(("step", "idle", "checkpoint_save"))
_OPTIMIZER = "Megatron-LM v2.4 megatron/optimizer/optimizer.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Megatron2021(Backend):
    """Megatron-LM of 2021 as a backend of the memory model.

    Attributes:
        first_step: Whether the first step is asked for, at whose end the optimizer makes its states.
    """

    framework: ClassVar[str] = "Megatron2021"

    first_step: bool = False

    def dtypes(self, spec: RunSpec) -> Dtypes:
        """One format for all runs."""
        return _FORMATS

    def engine(self, spec: RunSpec) -> EngineTraits:
        """Permanent fp16 buckets, scores in full, a vocabulary-parallel loss."""
        return EngineTraits(
            library="megatron",
            size=2,
            residual_size=2,
            sequence_length=spec.sequence_length,
            scores=True,
            vocabulary_multiple=VOCABULARY_MULTIPLE * spec.parallel.tensor,
            gradients_stay=True,
            vocabulary_parallel=True,
        )

    def overheads(self, rank: RankModel) -> Iterator[MemoryTerm]:
        """Gradients beside the buckets, and what a stage keeps of its neighbours."""
        yield from last_inputs(rank)
        yield from embedding_dropout(rank)
        yield from stage_outputs(rank)
        yield from gradients(rank)
        yield main_gradients(rank, first_step=self.first_step)


def stage_outputs(rank: RankModel) -> Iterator[MemoryTerm]:
    """The output of every micro-batch in flight, ``size h tok``, which later versions free once it is sent."""
    if not rank.view.head:
        h, f, z_res = rank.spec.model.hidden_size, rank.view.in_flight, rank.engine.residual_size
        what, source = "outputs of the stage", "Megatron-LM v2.4 megatron/schedules.py"
        yield term("activations", _PASSES, what, "f * z_res * h * tok", source, f=f, z_res=z_res, h=h, tok=rank.tokens)


def gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """fp16 gradients, ``2 P``, from the first micro-batch's backward pass until they are cast, and one weight's new."""
    moments: Moments = frozenset(("root_backward", "clip"))
    if rank.spec.gradient_accumulation > 1:
        moments |= _PASSES
    yield term("gradients", moments, "fp16 gradients", "2 * P", _OPTIMIZER, P=rank.elements.whole)
    what = "new gradient of one weight"
    yield term("temporary", _BLOCKS, what, "2 * w", "torch AccumulateGrad", w=rank.largest_block.largest)


def main_gradients(rank: RankModel, *, first_step: bool) -> MemoryTerm:
    """fp32 gradients for the optimizer, ``4 P``, from the first step on."""
    moments = _STEP if first_step else TRAINING
    return term("gradients", moments, "fp32 gradients", "4 * P", _OPTIMIZER, P=rank.elements.whole)
