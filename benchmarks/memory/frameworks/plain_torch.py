"""A framework that uses torch's own modules under ZeRO 1, as a backend that is only compared with.

Nothing is fused but what its rows name: a norm and a rotation save their steps, and torch's cross entropy is on the
whole vocabulary of every rank. bf16 parameters and gradients, fp32 master weights and moments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from launcher.estimate.memory.estimate import Backend
from launcher.estimate.memory.terms import MemoryTerm
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.formats import Dtypes
from launcher.estimate.rank.model import RankModel
from launcher.spec import RunSpec

_FORMATS = Dtypes(
    parameters="bf16",
    compute="bf16",
    gradients="bf16",
    accumulate="bf16",
    master="fp32",
    optimizer_states="fp32",
    reduce="bf16",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTorch(Backend):
    """Such a framework.

    Attributes:
        framework: Its name; nobody has measured its memory, so that the error band is the widest of all.
        fused_norm: True if RMSNorm is one kernel.
        scores: True if attention stores its scores.
    """

    framework: str
    fused_norm: bool = False
    scores: bool = False

    def dtypes(self, spec: RunSpec) -> Dtypes:
        """One format for all runs."""
        return _FORMATS

    def engine(self, spec: RunSpec) -> EngineTraits:
        """The modules of ``transformers``, whose rows are those of torch's own operations."""
        return EngineTraits(
            library="transformers",
            size=2,
            residual_size=2,
            sequence_length=spec.sequence_length,
            scores=self.scores,
            fused_norm=self.fused_norm,
            gradients_stay=True,
        )

    def overheads(self, rank: RankModel) -> Iterable[MemoryTerm]:
        """No terms: its buffers are unknown."""
        return ()
