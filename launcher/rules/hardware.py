"""Rules about the device: the card whose speed is taken, and bandwidths in the unit that is meant."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from launcher.base.errors import ConfigError
from launcher.base.package import shipped
from launcher.spec import RunSpec, edit
from launcher.spec.parse import closest

_LEAST = 1e6
"""Bytes a second below which a bandwidth was typed in another unit: no link of the last 20 years is as slow."""

_GIGA = 1e9

_BANDWIDTHS = (
    *(f"hardware.{name}_bandwidth" for name in ("memory", "link", "network", "pcie")),
    "cluster.network_bandwidth",
)


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """A card that is none of the options of ``hardware``, and bandwidths in GB a second."""
    card = spec.hardware.card
    if card is not None and card not in _cards():
        rule = "it names the option of hardware whose measured speed is taken, and there is no such card"
        ways_out = [edit.override("hardware.card", near) for near in closest(card, _cards())]
        yield ConfigError("hardware.card", card, rule, [*ways_out, "hardware.card=null"])
    for path in _BANDWIDTHS:
        value = edit.value_at(spec, path)
        if isinstance(value, int | float) and value < _LEAST:
            meant = round(value * _GIGA)
            rule = "a bandwidth is in bytes a second, of one GPU and one way"
            yield ConfigError(path, value, rule, [edit.override(path, meant if meant >= _LEAST else None)])


@cache
def _cards() -> tuple[str, ...]:
    """The shipped options of ``hardware`` that are GPUs of their own."""
    names = (path.stem for path in sorted((shipped("conf") / "hardware").glob("[!_]*.yaml")))
    return tuple(name for name in names if name not in ("auto", "cpu"))
