"""Model families: all that is known of one is a module of this folder, or of an installed package.

``launcher.rank.family`` says what is asked of it, and ``docs/extending.md`` shows a whole one.
"""

from __future__ import annotations

from launcher import registry
from launcher.rank.family import Family
from launcher.spec import ModelSpec

__all__ = ["PROTOCOL", "Family", "of"]

PROTOCOL = Family
"""The members that ``launcher.registry`` demands of a family that an installed package offers."""


def of(model: ModelSpec) -> Family:
    """The family of a model."""
    found: Family = registry.load("families", model.family)
    return found
