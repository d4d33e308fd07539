"""A measured framework as a backend: one of ours for what it holds, with its own way to execute a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from launcher.estimate.memory.estimate import Backend
from launcher.estimate.memory.terms import MemoryTerm
from launcher.estimate.rank.engine import EngineTraits, Execution
from launcher.estimate.rank.formats import Dtypes
from launcher.estimate.rank.model import RankModel
from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn(Backend):
    """A framework that is only scored.

    Attributes:
        base: The backend that tells number formats, traits of the engine and buffers.
        executes: The framework's way to execute a step.
        fitted: Features of it whose numbers were chosen on measured rows that are scored.
    """

    base: Backend
    executes: Execution
    fitted: tuple[str, ...] = ()

    @property
    def framework(self) -> str:
        """Of the error band of memory."""
        return self.base.framework

    @property
    def stores_scores(self) -> bool:
        """True if its kernel of attention has the scores in memory."""
        return self.executes.attention in ("unfused", "fused_softmax")

    def dtypes(self, spec: RunSpec) -> Dtypes:
        """As the base."""
        return self.base.dtypes(spec)

    def engine(self, spec: RunSpec) -> EngineTraits:
        """As the base, and attention's scores in memory where the kernel stores them."""
        found = self.base.engine(spec)
        return replace(found, scores=True) if self.stores_scores else found

    def overheads(self, rank: RankModel) -> Iterable[MemoryTerm]:
        """As the base."""
        return self.base.overheads(rank)

    def without_fitted(self) -> StandIn:
        """With the defaults of every framework in the place of these numbers."""
        default = Execution(framework=self.executes.framework)
        plain: dict[str, Any] = {name: getattr(default, name) for name in self.fitted}
        return replace(self, executes=replace(self.executes, **plain))

    def execution(self, spec: RunSpec) -> Execution:
        """The framework's own, for every run."""
        return self.executes
