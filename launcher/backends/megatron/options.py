"""Every argument of Megatron-LM's own parser, by what it does to memory (megatron-core 0.19.2).

An argument has a launcher setting that the estimate reads (``SETTINGS``); or is counted from ``backend.extra`` itself
(``implementation.COUNTED``); or, in ``options.yaml``, holds no uncounted memory or is refused, by reason. A test reads
Megatron's own parser and looks up the class of each argument; one without a class is refused, or named in a warning
where another parser reads it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.base import files

VERSION = "0.19.2"  # The release whose arguments are listed here.
_TABLES: Mapping[str, Any] = files.load_own(Path(__file__).with_suffix(".yaml"))
SETTINGS = {name: setting for setting, names in _TABLES["settings"].items() for name in names.split()}
"""Arguments that a setting gives, which the memory estimate and the record of the run read as well."""

NO_MEMORY, REFUSED = _TABLES["no_memory"], _TABLES["refused"]
"""Other arguments: names separated by blanks, by the reason of their class."""

INSTEAD: Mapping[str, str] = _TABLES["instead"]
"""The closest override for a refused argument."""

LET_THROUGH: Mapping[str, list[object]] = _TABLES["let_through"]
"""Values of refused arguments that change nothing."""

WORDS: Mapping[str, Mapping[object, str]] = _TABLES["words"]
"""Overrides for values of an argument that its setting spells differently."""

BESIDE: Mapping[str, str] = _TABLES["beside"]
"""Overrides without which the setting of an argument is not read."""

NUMBERS: Mapping[str, int] = _TABLES["numbers"]
"""Arguments whose numbers the memory estimate reads, with the minimum of each."""

OTHER_UNITS: str = _TABLES["other_units"]
"""Arguments whose number is not that of the setting: layers for chunks, a width for a count, samples for steps."""

_CLASSES = {
    name: (reason, table is REFUSED)
    for table in (NO_MEMORY, REFUSED)
    for reason, row in table.items()
    for name in row.split()
}


def line(name: str) -> tuple[str, bool] | None:
    """The reason of an argument's class, and True if it is refused; None for an argument without a class."""
    return _CLASSES.get(name)


def known() -> list[str]:
    """The arguments that are not refused, and those that a setting gives."""
    return [*SETTINGS, *(name for name, (_, is_refused) in _CLASSES.items() if not is_refused)]
