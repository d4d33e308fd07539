"""``plan=best`` of one run: the best layout in its place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from launcher.actions import plan_progress
from launcher.base import machine
from launcher.base.terminal import say
from launcher.config import best
from launcher.config.catalog import Catalog
from launcher.planner.best import Searches, asks_nothing, chosen, none_fits, remarks
from launcher.planner.judge import Preflight
from launcher.preflight.measured.known import Measured


def laid_out(words: Sequence[str], catalog: Catalog, own: Measured | None) -> tuple[str, ...]:
    """Words with those of the best layout behind them, which are said; where nothing fits, as they are typed.

    Args:
        words: The words without ``plan=best``.
        catalog: The configuration folders.
        own: The measured runs of the user; None takes the shipped constants.

    Raises:
        ConfigErrors: They are no question.
    """
    plan = Searches(catalog, machine.facts(), partial(plan_progress.watched, judge=Preflight(own))).plan(words)
    for line in remarks(plan):
        say(f"launch: {line}")
    if plan.layouts:
        say(f"launch: {best.WORD} is {' '.join(chosen(plan)) or 'these words alone'}")
    else:
        say(f"launch: {best.WORD}: {none_fits(plan)}; the run is judged as it is typed")
    kept = [word for word in words if word in plan.single or asks_nothing(word)]
    return (*kept, *chosen(plan)) if plan.layouts else (*words, *chosen(plan))
