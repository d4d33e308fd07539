"""Model families: all that is known of one is a module of this folder, or of an installed package.

``launcher.estimate.rank.family`` says what is asked of it, and ``docs/architecture.md`` shows a whole one.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base import registry
from launcher.base.errors import ConfigError
from launcher.estimate.rank.family import Family
from launcher.spec import ModelSpec, RunSpec, edit

__all__ = ["PROTOCOL", "Family", "check", "of"]

PROTOCOL = Family  # The members that ``launcher.base.registry`` demands of a family that an installed package offers.


def of(model: ModelSpec) -> Family:
    """The family of a model."""
    found: Family = registry.load("families", model.family)
    return found


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """A model type that its family does not read, or keys that only a family of many types has."""
    model = spec.model
    if of(model).traits.by_model_type:
        from launcher.estimate.families._decoders import checks  # Late, because it reads the descriptions of all types.

        yield from checks.of_type(spec)
        return
    for key, value, neutral in (("model_type", model.model_type, None), ("extra", dict(model.extra), {})):
        if value != neutral:
            rule = f"family={model.family} has no such choice: it is of family=transformers"
            ways = ["model.family=transformers", edit.override(f"model.{key}", neutral)]
            yield ConfigError(f"model.{key}", value, rule, ways)
