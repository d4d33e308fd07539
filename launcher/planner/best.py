"""The layout that replaces the word ``plan=best``; points of a sweep with the same question share one search."""

import re
from collections.abc import Callable, Iterator, Sequence

from launcher.base.machine import Machine
from launcher.config import synonyms
from launcher.config.catalog import Catalog
from launcher.planner.layouts import Plan
from launcher.planner.planning import plan, require_valid
from launcher.planner.question import Question, ask

_UNRELATED = re.compile(r"(optimizer\.(lr|min_lr|weight_decay)=|train\.seed=[1-9][0-9]{,8}\Z)")
"""Words that affect no estimate and are valid with every layout: points that differ only in them share a search.

Only seeds that every engine accepts are included: Megatron-LM accepts neither 0 nor more than 31 bits.
"""


class Searches:
    """The plans for the points of a sweep, cached by the words of their questions."""

    def __init__(self, catalog: Catalog, facts: Machine, search: Callable[[Question], Plan] = plan) -> None:
        self._catalog, self._facts, self._search = catalog, facts, search
        self._known: dict[tuple[str, ...], Plan] = {}

    def plan(self, words: Sequence[str]) -> Plan:
        """The plan for words without ``plan=best``. Raises ConfigErrors if they are wrong with every layout."""
        question = tuple(word for word in words if not asks_nothing(word))
        if question not in self._known:
            asked = ask(question, catalog=self._catalog, facts=self._facts)
            found = self._search(asked)
            require_valid(asked, found)
            self._known[question] = found
        return self._known[question]


def asks_nothing(word: str) -> bool:
    """True for a word that does not affect the search."""
    return _UNRELATED.match(word) is not None


def chosen(found: Plan) -> tuple[str, ...]:
    """The words that replace ``plan=best``; if nothing fits, only the assumed ones."""
    return found.layouts[0].overrides if found.layouts else tuple(each.override for each in found.assumptions)


def remarks(found: Plan) -> Iterator[str]:
    """Sentences about the words that the user did not type."""
    for each in found.assumptions:
        yield f"{synonyms.BEST} assumes {each.override}: {each.why}"
    if found.layouts and found.layouts[0].verdict.name == "tight":
        yield f"{synonyms.BEST} is {found.layouts[0].verdict.chance:.0%} likely to fit"


def none_fits(found: Plan) -> str:
    """Why a plan has no layout."""
    counts = found.counts
    return f"none of {counts.considered:,} layouts fits ({counts.unfit:,} need more memory, {counts.invalid:,} invalid)"
