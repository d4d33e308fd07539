"""Expert parallelism: the routed experts of a layer are shared out among ranks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from launcher.rank import RankView
from launcher.spec import RunSpec


def apply(view: RankView, spec: RunSpec) -> RankView:
    """The rank's share of the routed experts."""
    return replace(view, experts=view.experts * Fraction(1, spec.parallel.expert))
