"""Data parallelism: every data rank sees its own part of the global batch."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from launcher.rank import RankView
from launcher.spec import RunSpec


def apply(view: RankView, spec: RunSpec) -> RankView:
    """The rank's share of the global batch."""
    return replace(view, batch=view.batch * Fraction(1, spec.data_degree))
