"""How long a run is, as it was typed: ``train.steps``, or ``train.tokens``, from which the steps follow."""

from __future__ import annotations

from launcher.spec.run import RunSpec


def key(spec: RunSpec) -> str:
    """The key that sets the run's length."""
    return "train.steps" if spec.train.tokens is None else "train.tokens"


def value(spec: RunSpec) -> int:
    """The value of that key."""
    return spec.steps if spec.train.tokens is None else spec.train.tokens


def said(spec: RunSpec) -> str:
    """The run's length within a sentence."""
    tokens = spec.train.tokens
    return f"train.steps={spec.steps}" if tokens is None else f"the {spec.steps:,} steps of train.tokens={tokens}"


def typed(spec: RunSpec, steps: int) -> str:
    """The setting with which the run has so many steps, by the key that it has already."""
    return f"{key(spec)}={steps if spec.train.tokens is None else steps * spec.tokens_per_step}"
