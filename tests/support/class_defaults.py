"""``launcher/estimate/families/class_defaults.json``: defaults of ``transformers`` classes for absent keys.

``python -m tests.support.class_defaults`` writes it for the model types that a family reads, as installed.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

from launcher.base import registry
from launcher.base.package import FOLDER
from launcher.config.hub import keys
from launcher.estimate.families._decoders import TYPES
from launcher.estimate.rank.family import Family
from tests.support import decoder_defaults

FILE = FOLDER / "estimate" / "families" / "class_defaults.json"

_READ = re.compile(r"config\.([a-z_][a-z0-9_]*)|getattr\((?:self\.)?config, \"(\w+)\"")
_PLAIN = (bool, int, float, str, type(None))
_OF_NO_SIZE = re.compile(r"_token_id$|^(transformers_version|return_dict|output_|use_cache|summary_|id2label|label2id)")


def table() -> dict[str, Any]:
    """The table for the installed version."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as ARCHITECTURES

    families: list[Family] = [registry.load("families", name) for name in registry.shipped("families")]
    read = [kind for family in families for kind in family.traits.model_types if kind not in keys.SAME_CLASS]
    kinds = sorted([*read, *keys.TEXT_MODELS])
    return {
        "version": transformers.__version__,
        "architectures": dict(sorted(ARCHITECTURES.items())),
        "inner": dict(_inner()),
        "classes": {kind: _class(kind) for kind in kinds},
    }


def _inner() -> Iterator[tuple[str, str]]:
    """Multimodal model types, with the type of the language model inside if their file does not name it."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for kind in sorted(CONFIG_MAPPING):
        try:
            inner = getattr(CONFIG_MAPPING[kind](), "text_config", None)
        except Exception:  # Some class does not accept its own defaults.
            continue
        if inner is not None and inner.model_type:
            yield kind, inner.model_type


def _class(kind: str) -> dict[str, Any]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as ARCHITECTURES

    made = CONFIG_MAPPING[kind]
    fields = {field.name: _default(field) for field in dataclasses.fields(made)}
    other = {shown: name for name, shown in made.attribute_map.items()}
    defaults = {name: value for name, value in fields.items() if isinstance(value, _PLAIN)}
    defaults |= {name: defaults[shown] for name, shown in made.attribute_map.items() if shown in defaults}
    defaults |= {name: defaults[shown] for name, shown in other.items() if name not in defaults and shown in defaults}
    rotary = getattr(made(), "rope_parameters", None) or {}
    if "partial_rotary_factor" in rotary:
        defaults["partial_rotary_factor"] = rotary["partial_rotary_factor"]
    defaults["rope_theta"] = getattr(made, "default_theta", 10000.0)
    if kind in keys.TEXT_MODELS:  # Derived from the hidden size, whatever related classes have.
        defaults.setdefault("head_dim", None)
    kept = {name: defaults[name] for name in sorted(defaults) if not _OF_NO_SIZE.search(name)}
    reads = [] if kind in keys.TEXT_MODELS else _reads(made, ARCHITECTURES[kind], set(fields))
    if kind not in TYPES:
        aliases = {"aliases": dict(made.attribute_map)} if made.attribute_map else {}
        return {"defaults": kept, "reads": reads, **aliases}
    own = decoder_defaults.of_class(made)
    further = {name: value for name, value in own.items() if name not in kept}
    return {"defaults": kept, "reads": reads, "derived": [name for name in kept if name not in own], "further": further}


def _reads(made: Any, architecture: str, fields: set[str]) -> list[str]:
    """Keys that the code of a class reads; for a language model inside another, those of related classes."""
    import transformers

    module = getattr(transformers, architecture).__module__
    source = inspect.getsource(importlib.import_module(module)) + inspect.getsource(inspect.getmodule(made) or made)
    reads = {name for found in _READ.findall(source) for name in found if name} | fields | {*made.attribute_map}
    assert architecture in source
    return sorted(name for name in reads if not name.startswith("_") and not _OF_NO_SIZE.search(name))


def _default(field: dataclasses.Field[Any]) -> Any:
    """A field's default; an object if the default is not a plain value."""
    return dataclasses.MISSING if field.default is dataclasses.MISSING else field.default


def text() -> str:
    """The file's content, one line per model type."""
    found = table()
    lines = (f"  {json.dumps(kind)}: {json.dumps(values)}" for kind, values in found["classes"].items())
    return (
        f'{{\n "version": {json.dumps(found["version"])},\n'
        f' "architectures": {json.dumps(found["architectures"])},\n "inner": {json.dumps(found["inner"])},\n'
        ' "classes": {\n' + ",\n".join(lines) + "\n }\n}\n"
    )


if __name__ == "__main__":
    FILE.write_text(text())
