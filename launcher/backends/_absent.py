"""The answers of an engine that lacks what a backend is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.backends import Judgement
from launcher.base.errors import ConfigError
from launcher.spec import RunSpec


def no_obstacles(spec: RunSpec) -> Iterator[ConfigError]:
    """Its packages are all that it needs of a machine."""
    yield from ()


def no_validator(spec: RunSpec) -> Judgement:
    """It has no validator of its own."""
    return Judgement()


def nothing_unreadable(before: RunSpec, after: RunSpec) -> Iterator[ConfigError]:
    """Its checkpoints hold whole tensors by name, which any layout reads."""
    yield from ()
