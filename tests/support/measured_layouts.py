"""Measurements of layouts as ``launch`` leaves them, without running anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from launcher.config.catalog import Catalog
from launcher.planner.layouts import Layout
from launcher.planner.planning import plan
from launcher.planner.question import Question, ask
from launcher.planner.shortlist import shortlist
from launcher.rundir.state import State
from launcher.sweeping import measurement, sweep
from tests.support.helpers import CPU_HOST, ROOT
from tests.support.recorded_runs import line, recorded

WORDS = (
    *("model=tiny", "hardware=h100_80g", "cluster=slurm", "cluster.nodes=1", "cluster.gpus_per_node=2"),
    *("train.global_batch_size=8", "train.micro_batch_size=4", "parallel=ddp,fsdp", "checkpointing=none"),
    *("parallel.tensor=1", "parallel.pipeline=1", "parallel.context=1", "parallel.ulysses=1", "train.loss=full"),
    *("train.allocator=default", "zero.offload_optimizer=none"),
)
"""A question with two answers, each found immediately."""


@cache
def answered(*words: str) -> tuple[Question, tuple[Layout, ...]]:
    """A question, by default :data:`WORDS`, and its layouts."""
    question = ask(words or WORDS, catalog=Catalog(folder=ROOT), facts=CPU_HOST)
    return question, plan(question).layouts


def measured(folder: Path, ends: Sequence[tuple[State, float | str | None]], *, words: Sequence[str] = ()) -> Path:
    """Record a measurement whose runs ended in given states.

    Args:
        folder: Its directory.
        ends: For each layout, the state of its run, and its tokens per second or the reason of a failure.
        words: Words beyond those of the question.
    """
    question, layouts = answered(*WORDS, *words)
    chosen = shortlist(question, layouts[: len(ends)])
    asked = measurement.sweep_of(
        chosen, question=question.words, catalog=question.catalog, facts=CPU_HOST, trusted=False
    )
    points = [asked.point(number, own)[0] for number, own in enumerate(chosen.overrides)]
    sweep.write(folder, asked, points)
    for point, (now, found) in zip(points, ends, strict=True):
        reason = found if isinstance(found, str) else None
        steps: list[Mapping[str, Any]] = []
        if isinstance(found, float):
            steps = [line(step, 1.0, 1.0 if step <= 10 else found) for step in range(1, 21)]
        recorded(folder / point.id, *point.overrides, steps=steps, now=now, reason=reason)
    return folder
