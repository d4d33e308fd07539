"""Model families: each is one module of this folder, or of an installed package.

``launcher.estimate.rank.family`` defines the protocol, and ``docs/architecture.md`` shows a complete family.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from launcher.base import files, registry
from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.estimate.rank.adapters import module, parameter
from launcher.estimate.rank.counts import block_weights, kinds_of
from launcher.estimate.rank.family import Family
from launcher.estimate.rank.tensors import Weight
from launcher.spec import ModelSpec, RunSpec, edit

__all__ = ["PROTOCOL", "Family", "check", "of"]
PROTOCOL = Family  # The members that ``launcher.base.registry`` requires of a family from an installed package.


def of(model: ModelSpec) -> Family:
    """The family of a model."""
    found: Family = registry.load("families", model.family)
    return found


def classes() -> JsonObject:
    """The classes of ``transformers``: ``version``, ``architectures`` by model type, ``classes`` that families read.

    A class's ``defaults`` are the values of keys that a file leaves out, and ``reads`` the keys that its code reads.
    For a class that ``_decoders`` describes, ``derived`` names defaults that are not its own fields, and ``further``
    has its other fields.
    """
    found: JsonObject = files.own_json(Path(__file__).with_name("class_defaults.json"))
    return found


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of a model type that its family does not read, and of keys that only a family of many types has."""
    model = spec.model
    if (choices := of(model).traits.choices) is not None:
        yield from choices(spec)
        return
    counts = of(model).traits.counts
    extra = {
        key: value for key, value in model.extra.items() if key not in counts or type(value) is not int or value < 1
    }
    for key, value, neutral in (("model_type", model.model_type, None), ("extra", extra, {})):
        if value != neutral:
            rule = f"family={model.family} does not read it: only family=transformers does"
            ways = ["model.family=transformers", edit.override(f"model.{key}", neutral)]
            yield ConfigError(f"model.{key}", value, rule, ways)


def linears(model: ModelSpec) -> tuple[str, ...]:
    """The linear layers of a model's blocks that an adapter may wrap: the family's list, or all but the experts'."""
    family, rows = of(model), _rows(model)
    if family.traits.adapter_targets:
        there = {module(row) for row in rows}
        return tuple(name for name in family.traits.adapter_targets if name in there)
    cut = [row for row in rows if len(row.shape) == 2 and row.split == "tensor" and row.name.endswith(".weight")]
    return tuple(name for name in dict.fromkeys(map(module, cut)) if name not in family.traits.unwrapped(model))


def experts(model: ModelSpec) -> tuple[str, ...]:
    """The weights of all experts of a layer that may have an adapter; none where no formula describes the layers."""
    return () if of(model).traits.observed else tuple(dict.fromkeys(filter(None, map(parameter, _rows(model)))))


def _rows(model: ModelSpec) -> list[Weight]:
    family = of(model)
    layers = kinds_of(family, model, tuple(range(model.num_hidden_layers)), first_apart=False)
    return [row for _, layer, _ in layers for row in block_weights(family, model, layer)]


def with_targets(spec: RunSpec) -> RunSpec:
    """The run with the linear layers of its model named, if its adapter wraps all of them (``all-linear``)."""
    adapter = spec.adapter
    if adapter.name == "none" or "all-linear" not in adapter.targets or not (found := linears(spec.model)):
        return spec
    others = [name for name in adapter.targets if name not in ("all-linear", *found)]
    return replace(spec, adapter=replace(adapter, targets=(*found, *others)))


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """A warning that predictions are less certain for a model whose blocks no formula describes."""
    if of(spec.model).traits.observed:
        rule = (
            "no formula describes its layers: their memory was observed by running their code on tensors without"
            " values, and has the widest error band; time counts only matrix products and attention, not scans"
        )
        yield ConfigError("model.model_type", spec.model.model_type, rule, ["--engine trace"])
