"""Tensor parallelism: the weights of a layer are split by output or input features (arXiv:1909.08053)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from launcher.rank import RankView
from launcher.spec import RunSpec


def apply(view: RankView, spec: RunSpec) -> RankView:
    """The rank's share of every split weight; inside an expert that of ``parallel.expert_tensor``."""
    return replace(
        view,
        tensor=view.tensor * Fraction(1, spec.parallel.tensor),
        expert_tensor=view.expert_tensor * Fraction(1, spec.parallel.expert_tensor or spec.parallel.tensor),
    )
