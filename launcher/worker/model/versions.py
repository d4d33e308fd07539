"""Differences between versions of ``transformers``, asked of its classes, so that no other module asks for its version.

Versions that lack a whole feature are refused before the job starts (``launcher.backends._shared``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from launcher.worker.errors import TrainingError

_ROTARY, _SINCE = "rope_parameters", "5.0"


def settings(kind: Callable[..., Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a configuration in the words of the installed class.

    Since transformers 5.0 all of the rotary embedding is ``rope_parameters``. Before, ``rope_theta`` was a key of its
    own and ``rope_scaling`` held the rest; a key that a class does not know it keeps and does not read, so that the
    angles would be those of its default.

    Args:
        kind: The class of the configuration.
        wanted: The settings as transformers 5 has them.

    Raises:
        TrainingError: The class has no words for its rotary embedding.
    """
    known = inspect.signature(kind).parameters
    rotary = wanted.get(_ROTARY)
    if rotary is None or _ROTARY in known:
        return dict(wanted)
    name = getattr(kind, "__name__", str(kind))
    rest = {key: value for key, value in wanted.items() if key != _ROTARY}
    old = _old_words(rotary)
    unknown = [key for key in old if key not in known]
    if unknown:
        raise TrainingError(
            f"the installed transformers has no {', '.join(unknown)} in {name}, which the model's rotary embedding "
            f"needs: pip install 'transformers>={_SINCE}'"
        )
    return {**rest, **old}


def _old_words(rotary: Mapping[str, Any]) -> dict[str, Any]:
    """``rope_parameters`` as transformers 4 spells it; Gemma 3's sliding layers have a base of their own there."""
    if not any(isinstance(value, Mapping) for value in rotary.values()):
        scaling = {key: value for key, value in rotary.items() if key not in ("rope_theta", "partial_rotary_factor")}
        words = {key: rotary[key] for key in ("rope_theta", "partial_rotary_factor") if key in rotary}
        return words if scaling.get("rope_type", "default") == "default" else {**words, "rope_scaling": scaling}
    words = _old_words(rotary.get("full_attention") or {})
    sliding = rotary.get("sliding_attention") or {}
    return {**words, "rope_local_base_freq": sliding["rope_theta"]} if "rope_theta" in sliding else words
