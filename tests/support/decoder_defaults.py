"""Defaults of the classes that ``families/_decoders`` describes, from the installed transformers."""

from __future__ import annotations

import dataclasses
import inspect
from importlib import import_module
from typing import Any

_OF_NO_MODEL = (
    "architectures",
    "model_type",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "use_cache",
    "sep_token_id",
)


def of_class(config: Any) -> dict[str, Any]:
    """Defaults of the fields that a class adds to those of all configurations, as written in the class.

    Some attention code reads a head size although its own configuration class has no such field.
    """
    common = {field.name for field in dataclasses.fields(import_module("transformers").PreTrainedConfig)}
    code = inspect.getsource(import_module(config.__module__.replace("configuration_", "modeling_")))
    undeclared = {"head_dim": None} if 'self.head_dim = getattr(config, "head_dim"' in code else {}
    inner = _inside(config) if config.model_type == "dbrx" else {}
    outer = {name.partition(".")[0] for name in inner}
    return (
        undeclared
        | inner
        | {
            field.name: _default(field)
            for field in dataclasses.fields(config)
            if field.name not in {*common, *_OF_NO_MODEL, *outer}
        }
    )


def _inside(config: Any) -> dict[str, Any]:
    """Keys of the configurations inside another, and the rotary base that DBRX's attention reads there."""
    pairs = ((name, key, value) for name, each in config.sub_configs.items() for key, value in of_class(each).items())
    return {f"{name}.{key}": value for name, key, value in pairs} | {"attn_config.rope_theta": 10000.0}


def _default(field: Any) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING or not _plain(field.default) else field.default


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list | dict)
