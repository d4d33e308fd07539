"""DeepSpeed-Ulysses: tokens split over ranks, and inside attention heads in place of tokens (arXiv:2309.14509).

Inside attention a rank holds all tokens of its share of the heads: as many bytes as its share of the tokens of all heads.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from launcher.rank import RankView
from launcher.spec import RunSpec


def apply(view: RankView, spec: RunSpec) -> RankView:
    """The rank's share of the tokens of a sequence."""
    return replace(view, tokens=view.tokens * Fraction(1, spec.parallel.ulysses))
