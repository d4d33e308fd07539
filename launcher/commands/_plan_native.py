"""The engines' own validators asked about the layouts of an answer; what one refuses is left out, and said."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

from launcher.backends import Judgement
from launcher.commands._common import say
from launcher.errors import ConfigErrors
from launcher.planner import loses, wording
from launcher.planner.result import Layout, Plan
from launcher.preflight.assess import judge_all


def asked(found: Plan) -> tuple[Plan, tuple[str, ...]]:
    """The answer without the layouts that their engine's validator refuses, and sentences about what was asked.

    Args:
        found: The answer.

    Raises:
        ConfigErrors: They refuse all layouts.
    """
    tight = () if found.tight is None else (found.tight,)
    shown = (*found.layouts, *found.others, *tight)
    if sys.stderr.isatty():
        say("launch: the engines' own validators are asked about these layouts; --no-native leaves them out")
    judged = list(zip(shown, judge_all([each.spec for each in shown]), strict=True))
    sound = [layout for layout, judgement in judged if not judgement.errors]
    if len(sound) == len(shown):
        return found, tuple(_remarks(judged))
    if not any(layout in sound for layout in found.layouts):
        raise ConfigErrors(judged[0][1].errors)
    layouts = loses.explained([replace(each, loses="") for each in found.layouts if each in sound])
    others = [replace(each, loses="") for each in found.others if each in sound]
    left = replace(
        found,
        layouts=layouts,
        others=loses.explained(others, layouts[0]) if layouts else (),
        tight=found.tight if found.tight in sound else None,
    )
    return left, (*_refusals(found, judged), *_remarks(judged))


def _refusals(found: Plan, judged: Iterable[tuple[Layout, Judgement]]) -> Iterator[str]:
    for number, (layout, judgement) in enumerate(judged, 1):
        which = f"layout {number}" if number <= len(found.layouts) else wording.layout(layout.spec)
        for error in judgement.errors:
            yield f"{which} is left out: {error.where}: {error.rule}"


def _remarks(judged: Iterable[tuple[Layout, Judgement]]) -> Iterator[str]:
    """Why a validator was not asked, once for all layouts."""
    yield from dict.fromkeys(remark.rule for _, judgement in judged for remark in judgement.warnings)
