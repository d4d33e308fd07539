"""Settings for a ``config.json`` that no family describes, found by building its ``transformers`` class without memory.

That needs torch and ``transformers``, in a separate process, once per file and versions: the result is kept in the
user's cache. Keys that the file lacks have the defaults of the class.
"""

import importlib.metadata
import json
import subprocess
from collections.abc import Mapping
from typing import Any

from launcher.base import cache, package
from launcher.base.files import JsonObject
from launcher.config.hub import keys

_TIMEOUT_S = 600.0
_FORMAT = 7  # Version of the cached result; another version of this program may find more.

NOT_OF_THE_CLASS = frozenset(keys.WORDS["not_of_the_class"].split())
"""Keys of a file that are not passed to its class: about weights, history and generation."""


class NotObservedError(Exception):
    """The class cannot be observed: torch or ``transformers`` is missing, or the class refuses the file."""


def settings(content: Mapping[str, Any]) -> tuple[JsonObject, frozenset[str]]:
    """Return the keys of the group ``model`` for a file, and the keys that its class reads; else NotObservedError."""
    config = {key: value for key, value in content.items() if key not in NOT_OF_THE_CLASS}
    found = _observed(config)
    seen = {key: value for key, value in found.items() if key != "reads"}
    sizes = found["sizes"]
    attention = "eager" if found.get("attention") == "eager" else "sdpa"
    made = {
        "family": "observed",
        "model_type": content["model_type"],
        **sizes,
        "position_embedding": "none",
        "attention": attention,
        "extra": {"config": {key: value for key, value in config.items() if key != "model_type"}, "observed": seen},
    }
    return made, frozenset(found["reads"])


def _observed(config: JsonObject) -> JsonObject:
    versions = [_version(name) for name in ("transformers", "torch")]
    found: JsonObject = cache.answer("observed", [_FORMAT, versions, config], lambda: _run(json.dumps(config)))
    return found


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        way = package.install(package.TRAINING)
        raise NotObservedError(f"{name} is needed for that and is not installed for this Python: {way}") from None


def _run(text: str) -> JsonObject:
    try:
        done = package.run_module("launcher.worker.observe", text=text, timeout_s=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise NotObservedError(f"its class was not built within {_TIMEOUT_S:.0f} s") from None
    lines = done.stdout.splitlines()
    found: JsonObject = json.loads(lines[-1]) if lines else {"error": "its process wrote nothing"}
    if "error" in found:
        raise NotObservedError(f"its class cannot be built: {found['error']}")
    return found
