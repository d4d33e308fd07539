"""Megatron's sequence parallelism: norms and residuals split along the sequence over the TP ranks (arXiv:2205.05198)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from launcher.rank import RankView
from launcher.spec import RunSpec


def apply(view: RankView, spec: RunSpec) -> RankView:
    """The rank's share of the tokens outside of attention and MLP."""
    if not spec.parallel.sequence:
        return view
    return replace(view, residual=view.residual * Fraction(1, spec.parallel.tensor))
