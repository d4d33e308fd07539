"""The planner in the whole space of an engine: is the layout that was measured fastest among its best ideas?

A problem fixes model, GPUs, batch, sequence and precision, and the winner's row the framework that stands in for the
engine, with its kernels; all else is searched. Two layouts are the same idea where ``launcher.planner.result.Idea`` is
the same: what is sharded, the degrees of tensor, pipeline, context and expert parallelism, what is offloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.plan.judges import OfFramework
from benchmarks.plan.problems import Problem
from launcher.planner.judge import Judge
from launcher.planner.result import Idea
from launcher.planner.search import Found, Search
from launcher.planner.space import Space
from launcher.spec import RunSpec
from launcher.spec.edit import value_at

_DEGREES = (
    "parallel.tensor", "parallel.pipeline", "parallel.context", "parallel.expert", "train.micro_batch_size",
)  # fmt: skip
"""What a frame sets of a layout as the files state it."""

_SHARDED = ("zero.stage", "parallel.replicate", "zero.offload_optimizer", "zero.offload_parameters")

type Standing = Literal["shown", "idea", "slower", "unfit", "outside"]
"""``shown``: the very layout is one of the ten; ``idea``: its idea is, with another micro-batch, recomputation or
schedule; ``slower``: ten other ideas stand before it; ``unfit``: it does not fit by our estimate; ``outside``: the
space does not have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The measured winner in the eyes of the planner.

    Attributes:
        standing: Its place.
        distance: Its predicted time over that of the planner's best layout; None where there is none.
        considered: Layouts of the space.
    """

    standing: Standing
    distance: float | None
    considered: int


def search(problem: Problem) -> Winner:
    """Search the whole space of a problem."""
    row = problem.winner
    if row.spec is None:
        raise AssertionError("a row of a problem has a specification")
    judge = OfFramework(row)
    space = Space.of(row.spec, frozenset(), {}, judge.errors)
    found = Found()
    for found in Search([space], judge).run():
        pass
    shown, seconds = [each.spec for each in found.shown()], judge.seconds(row.spec)
    best = found.shown()[0].seconds if shown else None
    return Winner(
        standing=_standing(row.spec, shown, space, judge),
        distance=seconds / best if seconds and best else None,
        considered=found.considered,
    )


def _standing(winner: RunSpec, shown: list[RunSpec], space: Space, judge: Judge) -> Standing:
    if any(_same(winner, spec) for spec in shown):
        return "shown"
    if Idea.of(winner) in map(Idea.of, shown):
        return "idea"
    if not any(_same(winner, spec) for spec in _layouts(winner, space, judge)):
        return "outside"
    return "slower" if judge.verdict(winner).fits else "unfit"


def _layouts(winner: RunSpec, space: Space, judge: Judge) -> Iterator[RunSpec]:
    """The valid layouts of the space with the winner's degrees."""
    for frame in space.frames(judge.errors):
        if all(frame.settings[path] == value_at(winner, path) for path in _DEGREES):
            for core in space.cores(frame, judge.errors):
                yield from space.reliefs(core, judge.errors)


def _same(one: RunSpec, other: RunSpec) -> bool:
    """True if two layouts are the same by all that the files state of one."""
    paths = (*_DEGREES, *_SHARDED, "checkpointing.mode")
    return all(value_at(one, path) == value_at(other, path) for path in paths)
