"""The planner in the whole space of an engine: is the layout that was measured fastest among its best ideas?

A problem fixes model, GPUs, batch, sequence and precision, and the winner's row the framework that stands in for the
engine, with its kernels; all else is searched. Two layouts are the same idea where ``launcher.planner.layouts.Kind`` is
the same: what is sharded, the degrees of tensor, pipeline, context and expert parallelism, what is offloaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.plan.judges import OfFramework
from benchmarks.plan.problems import Problem
from launcher.planner.judge import Preflight
from launcher.planner.keys import SEARCHED
from launcher.planner.layouts import Kind
from launcher.planner.parallel_search import searched
from launcher.planner.space import Space
from launcher.spec import RunSpec
from launcher.spec.edit import changed, value_at

_DEGREES = (
    "parallel.tensor", "parallel.pipeline", "parallel.context", "parallel.expert", "train.micro_batch_size",
)  # fmt: skip
"""Keys that degrees set of a layout as the files state it."""

_SHARDED = ("zero.stage", "parallel.replicate", "zero.offload_optimizer", "zero.offload_parameters")

type Standing = Literal["shown", "idea", "slower", "unfit", "outside"]
"""``shown``: the very layout is one of the ten; ``idea``: its idea is, with another micro-batch, recomputation or
schedule; ``slower``: ten other ideas stand before it; ``unfit``: it does not fit for certain by our estimate;
``outside``: the space does not have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """The planner's verdict on the measured winner.

    Attributes:
        standing: Its place.
        distance: Its predicted time over that of the planner's best layout; None where there is none.
        considered: Layouts of the space.
    """

    standing: Standing
    distance: float | None
    considered: int


def search(problem: Problem, *, as_run: bool = False) -> Winner:
    """Search the space of a problem.

    Args:
        problem: The problem.
        as_run: True to hold what all of its runs have in common, degrees and micro-batch apart.
    """
    row = problem.winner
    if row.spec is None:
        raise AssertionError("a row of a problem has a specification")
    judge = OfFramework(row, row.spec)
    space = Space.of(row.spec, _in_common(problem) if as_run else frozenset(), {}, judge.errors)
    found = searched([space], judge)
    shown, seconds = found.shown(), judge.seconds(row.spec)
    best = shown[0].seconds if shown else None
    return Winner(
        standing=_standing(row.spec, [each.spec for each in shown], space, judge),
        distance=seconds / best if seconds and best else None,
        considered=found.considered,
    )


def _in_common(problem: Problem) -> frozenset[str]:
    """Layout keys with one value in all runs: the source has not shown their other values to be slower."""
    runs = [row.spec for row in problem.rows if row.spec is not None]
    open_keys = {*_DEGREES, "parallel.first_stage_layers", "parallel.last_stage_layers"}
    return frozenset(
        path
        for path in SEARCHED
        if path not in open_keys and all(value_at(run, path) == value_at(runs[0], path) for run in runs)
    )


def _standing(winner: RunSpec, shown: list[RunSpec], space: Space, judge: Preflight) -> Standing:
    if any(_same(winner, spec) for spec in shown):
        return "shown"
    if Kind.of(winner) in map(Kind.of, shown):
        return "idea"
    if not any(_same(winner, variant) for variant in _variants(winner, space, judge)):
        return "outside"
    return "slower" if judge.verdict(winner).name == "fits" else "unfit"


def _variants(winner: RunSpec, space: Space, judge: Preflight) -> Iterator[RunSpec]:
    """Layouts of the space with the winner's degrees and, where allowed, its recomputation."""
    if winner.checkpointing.mode not in space.savings.modes:
        return
    for degrees in space.degrees(judge.errors):
        if all(degrees.settings[path] == value_at(winner, path) for path in _DEGREES):
            for variant in space.variants(degrees, judge.errors):
                yield changed(variant, "checkpointing.mode", winner.checkpointing.mode)


def _same(one: RunSpec, other: RunSpec) -> bool:
    """True if two layouts agree in everything that the files state."""
    paths = (*_DEGREES, *_SHARDED, "checkpointing.mode")
    return all(value_at(one, path) == value_at(other, path) for path in paths)
