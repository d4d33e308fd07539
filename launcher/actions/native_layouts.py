"""The engines' own validators asked about the layouts of an answer; what one refuses is searched past, and said."""

from __future__ import annotations

from collections.abc import Callable

from launcher.actions.waiting import sign
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import say
from launcher.planner import wording
from launcher.planner.judge import Preflight
from launcher.planner.result import Layout, Plan
from launcher.preflight.assess import judge_all, validator

_ROUNDS = 4
"""Searches at most: each leaves out what the validators refuse of the one before."""


def sound[T](first: T, plan_of: Callable[[T], Plan], judge: Preflight, again: Callable[[], T]) -> T:
    """An answer whose layouts the engines' own validators take.

    Args:
        first: The answer so far.
        plan_of: The layouts of an answer.
        judge: Of the searches.
        again: Searches once more.

    Raises:
        ConfigErrors: They refuse all that is found, twice for the same reasons, or after a few searches.
    """
    answer, before = first, set[str]()
    for number in range(_ROUNDS):
        found = plan_of(answer)
        refused = _refused(found, judge)
        if not refused:
            return answer
        for layout, error in refused:
            say(f"launch: left out: {wording.layout(layout.spec)}: {error.where}: {error.rule}")
        reasons = {error.rule for _, error in refused}
        all_of_them = {layout.overrides for layout, _ in refused} >= {layout.overrides for layout in found.layouts}
        if number == _ROUNDS - 1 or (all_of_them and reasons == before):
            raise ConfigErrors(dict.fromkeys(error for _, error in refused))
        answer, before = again(), reasons
    raise AssertionError("the last round returns or raises")


def _refused(found: Plan, judge: Preflight) -> list[tuple[Layout, ConfigError]]:
    """The shown layouts that a validator refuses, which the judge takes as invalid from now on."""
    tight = () if found.tight is None else (found.tight,)
    shown = (*found.layouts, *found.others, *tight)
    named = " and ".join(sorted({f"{name}'s" for each in shown if (name := validator(each.spec))}))
    with sign(f"asking {named or "the engines'"} own validators about these layouts; --no-native leaves them out"):
        judged = list(zip(shown, judge_all([each.spec for each in shown]), strict=True))
    for remark in dict.fromkeys(remark.rule for _, judgement in judged for remark in judgement.warnings):
        say(f"launch: {remark}")
    refused = [(layout, judgement.errors[0]) for layout, judgement in judged if judgement.errors]
    for layout, error in refused:
        judge.refuse(layout.spec, error)
    return refused
