"""A command line written down as a recipe: the file of ``launch recipe save`` and ``launch import``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.config import own_models
from launcher.config.axes import read_axes
from launcher.config.catalog import Catalog
from launcher.config.compose import Interval, value_of
from launcher.config.overrides import read
from launcher.config.recipes import SCHEMA, expand
from launcher.errors import ConfigError, ConfigErrors


def content_of(texts: Sequence[str], catalog: Catalog, *, summary: str) -> dict[str, Any]:
    """A command line as a recipe: its choices, settings and axes; a recipe that it names is taken in.

    Raises:
        ConfigErrors: A word cannot be read.
    """
    axes = read_axes(texts, catalog)
    words, _ = read(axes.fixed, catalog)
    overrides = expand(words, catalog)
    own = own_models.chosen(overrides, catalog, fetching=own_models.may_fetch(words, catalog))
    content: dict[str, Any] = {"schema": SCHEMA, "summary": summary, "source": "", "choose": {}, "set": {}, "sweep": {}}
    for override in overrides if own is None else own.expand(overrides):
        if override.key in ("run.name", "run.directory") or override.value == own_models.BASE:
            continue  # The name of one run is not part of what others repeat, and sizes say all of a model.
        content["choose" if override.group else "set"][override.key] = value_of(override)
    for axis in axes.swept:
        if isinstance(axis.values, Interval):
            raise ConfigErrors([ConfigError(axis.key, "interval", "a recipe sweeps over a list of values")])
        found, _ = read([f"{axis.key}={value}" for value in axis.values], catalog)
        content["sweep"][axis.key] = [value_of(override) for override in found]
    return {key: value for key, value in content.items() if value or key == "source"}


def as_text(name: str, content: Mapping[str, Any]) -> str:
    """A recipe as YAML, headed by the command that runs it."""
    import yaml

    sweep = "-m " if content.get("sweep") else ""
    return f"# launch {sweep}recipe={name}\n{yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)}"
