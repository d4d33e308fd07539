"""Specifications that were written before some keys of ``hardware``, with those of the card that they name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from launcher.base.package import shipped
from launcher.config import safe_yaml
from launcher.config.open_values import SPEED, THIS_MACHINE, option_of

_OF_CARDS = ("compute_capability", *SPEED)
"""Keys that records of early versions lack, and that a card has by its name."""


def with_card(spec: Any) -> Any:
    """The specification as data, with the keys that it lacks from the shipped card.

    A GPU of the machine that wrote it is the card of its product's name, where there is one.
    """
    hardware = spec.get("hardware") if isinstance(spec, dict) else None
    if not isinstance(hardware, dict) or all(key in hardware for key in _OF_CARDS):
        return spec
    name, title = hardware.get("name"), hardware.get("title")
    own = option_of(title.removesuffix(THIS_MACHINE)) if name == "auto" and isinstance(title, str) else None
    named = {} if own is None else {"card": own}
    return {**spec, "hardware": {**_figures(str(own or name)), **hardware, **named}}


@cache
def _figures(option: str) -> Mapping[str, Any]:
    """The keys of a shipped card; None each where there is none of this name."""
    path = shipped("conf") / "hardware" / f"{option}.yaml"
    known = safe_yaml.load(path) if path.is_file() else None
    return {key: known.get(key) if isinstance(known, dict) else None for key in _OF_CARDS}
