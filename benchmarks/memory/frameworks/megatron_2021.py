"""Megatron-LM of May 2021, which trained fp16 on V100: torch's DistributedDataParallel, apex' Adam, scores in full.

Twenty bytes a parameter after a step: fp16 parameters, fp32 copies, two moments, the fp32 gradients of the last step,
which ``zero_grad`` leaves alone, and the fp16 buckets of DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from launcher.backends.megatron import permanent
from launcher.backends.megatron.overheads import VOCABULARY_MULTIPLE, embedding_dropout
from launcher.memory.estimate import Backend
from launcher.memory.moments import ALWAYS, Moment
from launcher.memory.terms import MemoryTerm, Pile
from launcher.rank.engine import EngineTraits
from launcher.rank.formats import Dtypes
from launcher.rank.model import RankModel
from launcher.spec import RunSpec
from launcher.units import count

_FORMATS = Dtypes(
    parameters="fp16",
    compute="fp16",
    gradients="fp16",
    accumulate="fp16",
    master="fp32",
    optimizer_states="fp32",
    reduce="fp16",
)
_BLOCKS: frozenset[Moment] = frozenset(("block_backward", "next_block_backward", "second_layer_backward"))
_PASSES: frozenset[Moment] = _BLOCKS | {"forward", "output", "loss", "loss_backward"}
_STEP: frozenset[Moment] = frozenset(("step", "idle", "checkpoint_save"))
_OPTIMIZER = "Megatron-LM v2.4 megatron/optimizer/optimizer.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Megatron2021(Backend):
    """It as a backend of the memory model.

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
        yield from permanent.last_inputs(rank)
        yield from embedding_dropout(rank)
        yield from stage_outputs(rank)
        yield from gradients(rank)
        yield main_gradients(rank, first_step=self.first_step)


def stage_outputs(rank: RankModel) -> Iterator[MemoryTerm]:
    """The output of every micro-batch in flight, ``size h tok``, which later versions free once it is sent."""
    if not rank.view.head:
        model = rank.spec.model
        size = ceil(rank.engine.residual_size * model.hidden_size * rank.tokens * rank.view.in_flight)
        yield _term("activations", _PASSES, size, "outputs of the stage", "Megatron-LM v2.4 megatron/schedules.py")


def gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """fp16 gradients, ``2 P``, from the first micro-batch's backward pass until they are cast, and one weight's new."""
    elements = rank.elements.whole
    moments: frozenset[Moment] = frozenset(("root_backward", "clip"))
    if rank.spec.gradient_accumulation > 1:
        moments |= _PASSES
    yield _term("gradients", moments, 2 * elements, f"2 B x {count(elements)} parameters", _OPTIMIZER)
    largest = 2 * rank.largest_block.largest
    yield _term("temporary", _BLOCKS, largest, "new gradient of one weight", "torch AccumulateGrad")


def main_gradients(rank: RankModel, *, first_step: bool) -> MemoryTerm:
    """fp32 gradients for the optimizer, ``4 P``, from the first step on."""
    elements = rank.elements.whole
    moments = _STEP if first_step else ALWAYS - {"load"}
    return _term("gradients", moments, 4 * elements, f"4 B x {count(elements)} parameters", _OPTIMIZER)


def _term(pile: Pile, moments: frozenset[Moment], size: int, formula: str, source: str) -> MemoryTerm:
    return MemoryTerm(pile=pile, moments=moments, bytes=size, formula=formula, source=source)
