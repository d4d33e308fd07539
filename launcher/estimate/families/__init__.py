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
    if (choices := of(model).traits.choices) is not None:
        yield from choices(spec)
        return
    extra, width = dict(model.extra), model.extra.get("shared_width")
    if of(model).traits.experts and spec.backend.name == "megatron" and type(width) is int and width > 0:
        del extra["shared_width"]
    for key, value, neutral in (("model_type", model.model_type, None), ("extra", extra, {})):
        if value != neutral:
            rule = f"family={model.family} has no such choice: it is of family=transformers"
            ways = ["model.family=transformers", edit.override(f"model.{key}", neutral)]
            yield ConfigError(f"model.{key}", value, rule, ways)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """What is known less well of a model whose blocks no formula describes."""
    if of(spec.model).traits.observed:
        rule = (
            "no formula describes its layers: their memory is that of their code under tensors without values, with the"
            " widest error band; time is that of matrix products and attention alone, a scan's is left out"
        )
        yield ConfigError("model.model_type", spec.model.model_type, rule, ["--engine trace"])
