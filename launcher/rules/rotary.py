"""``model.rope_parameters``: how rotary positions are scaled, by the words of transformers' ``rope_parameters``."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit

_NEEDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
}
"""The scalings, and the numbers without which one cannot be computed (``modeling_rope_utils.py``)."""

_ALSO: Mapping[str, tuple[str, ...]] = {
    "yarn": (
        "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "original_max_position_embeddings",
        "truncate",
    ),
}  # fmt: skip
"""Further entries that a scaling reads; all read ``partial_rotary_factor``."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """A scaling that nobody knows, one without its numbers, and entries that it does not read."""
    path, given = "model.rope_parameters", spec.model.rope_parameters
    if not given:
        return
    kind = given.get("rope_type", "default")
    if not isinstance(kind, str) or kind not in _NEEDS:
        ways = [f"{path}.rope_type={near}" for near in difflib.get_close_matches(str(kind), _NEEDS)]
        rule = f"rotary positions are scaled by {', '.join(_NEEDS)}"
        yield ConfigError(f"{path}.rope_type", kind, rule, [*ways, f"{path}=null"])
        return
    if "rope_theta" in given:
        way = edit.override("model.rope_theta", given["rope_theta"])
        yield ConfigError(f"{path}.rope_theta", given["rope_theta"], "it is model.rope_theta here", [way])
    for name in _NEEDS[kind]:
        if not _is_number(given.get(name)):
            rule = f"rope_type={kind} is computed from it: it is a number"
            yield ConfigError(f"{path}.{name}", given.get(name), rule, [f"+{path}.{name}=..."])
    known = ("rope_type", "rope_theta", "partial_rotary_factor", *_NEEDS[kind], *_ALSO.get(kind, ()))
    for name, value in given.items():
        if name not in known:
            rule = f"rope_type={kind} does not read it; it reads {', '.join(known[2:])}"
            yield ConfigError(f"{path}.{name}", value, rule, [f"{path}=null"])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
