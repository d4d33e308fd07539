"""Recipe files made from a command line, for ``launch recipe save`` and ``launch import``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.config.axes import read_axes
from launcher.config.catalog import Catalog
from launcher.config.compose import Interval, value_of
from launcher.config.hub import own_models
from launcher.config.overrides import read
from launcher.config.recipes import SCHEMA, expand, literal
from launcher.config.request import request
from launcher.spec import RunSpec, secrecy
from launcher.spec.parse import to_dict

_NAMED_BY = {
    **dict.fromkeys(("model", "parallel", "precision", "optimizer", "adapter", "hardware"), "name"),
    **dict.fromkeys(("cluster", "tracking"), "kind"),
    "checkpointing": "mode",
    "data": "source",
    "zero": "stage",
}
"""The key of a group that holds the name of the chosen option, if one was chosen."""

_NOT_REPEATED = ("run", "sweep", "hardware")


def content_of(texts: Sequence[str], catalog: Catalog, *, summary: str) -> JsonObject:
    """Return a command line as a recipe, including one that it names; raises ConfigErrors if a word is invalid."""
    axes = read_axes(texts, catalog)
    words, _ = read(axes.fixed, catalog)
    overrides = expand(words, catalog)
    own = own_models.chosen(overrides, catalog, fetching=own_models.may_fetch(words, catalog))
    content: JsonObject = {"schema": SCHEMA, "summary": summary, "source": "", "choose": {}, "set": {}, "sweep": {}}
    for override in overrides if own is None else own.expand(overrides):
        if override.key in ("run.name", "run.directory") or override.value == own_models.BASE:
            continue  # A run's name is not for others to repeat, and the sizes describe all of a model.
        content["choose" if override.group else "set"][override.key] = value_of(override)
    for axis in axes.swept:
        if isinstance(axis.values, Interval):
            raise ConfigErrors([ConfigError(axis.key, "interval", "a recipe can only sweep over a list of values")])
        found, _ = read([f"{axis.key}={value}" for value in axis.values], catalog)
        content["sweep"][axis.key] = [value_of(override) for override in found]
    return {key: value for key, value in content.items() if value or key == "source"}


def words_for(spec: RunSpec, catalog: Catalog) -> list[str]:
    """Return overrides that compose to a run: the options that its groups are named after, and keys that differ.

    Facts of the machine and the run's name are left out, since others do not repeat them. Raises ConfigErrors if the
    options no longer compose.
    """
    whole: Any = to_dict(spec)
    named = {group: str(whole[group][key]) for group, key in _NAMED_BY.items()}
    words = [f"{group}={name}" for group, name in named.items() if name in catalog.groups.get(group, ())]
    composed: Any = to_dict(request(words, catalog=catalog).require())
    for group, content in whole.items():
        if isinstance(content, dict) and group not in _NOT_REPEATED:
            words += _differing(group, content, composed[group])
    words += [f"{key}={literal(whole[key])}" for key in ("script", "script_args") if whole[key]]
    return words


def _differing(group: str, wanted: Mapping[str, Any], composed: Mapping[str, Any]) -> Iterator[str]:
    for key, value in wanted.items():
        if isinstance(value, dict):  # An open node, whose keys are the user's own.
            yield from (f"+{group}.{key}.{own}={literal(item)}" for own, item in value.items())
        elif value != composed[key]:
            yield f"{group}.{key}={literal(value)}"


def as_text(name: str, content: Mapping[str, Any]) -> str:
    """Return a recipe as YAML, headed by the command that runs it; raises ConfigErrors if it would hold a secret."""
    import yaml

    secrecy.require_none(content, "the recipe")
    sweep = "-m " if content.get("sweep") else ""
    return f"# launch {sweep}recipe={name}\n{yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)}"
