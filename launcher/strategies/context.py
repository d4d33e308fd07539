"""Context parallelism: the tokens of one sequence are split over ranks in every layer."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from launcher.rank import RankView
from launcher.spec import RunSpec


def apply(view: RankView, spec: RunSpec) -> RankView:
    """The rank's share of the tokens of a sequence."""
    return replace(view, tokens=view.tokens * Fraction(1, spec.parallel.context))
