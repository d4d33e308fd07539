"""Every option of DeepSpeed 0.19.8's own file, by what it does to memory.

An option of ``options.yaml`` has a launcher setting that the estimate reads (``SETTINGS``); or is counted from
``backend.extra`` itself (``COUNTED``); or holds no uncounted memory (``NO_MEMORY``, with the reason); or is refused
unless it has its default (``REFUSED``); or belongs to a block of older releases (``GONE``), or to one that needs
support from the training program (``PROGRAM``). A test reads DeepSpeed's own models and looks up each option; one
that is not listed is refused by name.

ZeRO's options are listed without the prefix ``stage3_``, which DeepSpeed accepts with and without
(``populate_by_name`` of ``runtime/config_utils.py``). An entry for a block covers all of its options.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.base import files

VERSION = "0.19.8"  # The release whose options are listed here.
_TABLE = files.load_own(Path(__file__).with_suffix(".yaml"))


class Refusal(NamedTuple):
    """An option whose memory is not counted."""

    usual: object  # DeepSpeed's default, which passes; None if it has none that one would write.
    why: str  # What it changes.
    instead: tuple[str, ...] = ()  # The closest overrides; without any, the default is the way out.


SETTINGS: Mapping[str, str] = _TABLE["settings"]
COUNTED: Mapping[str, str] = _TABLE["counted"]
NO_MEMORY = {path: why for why, paths in _TABLE["no_memory"].items() for path in paths.split()}
REFUSED = {
    path: Refusal(row["usual"], row["why"], tuple(row.get("instead", ()))) for path, row in _TABLE["refused"].items()
}
GONE: Mapping[str, Sequence[str]] = _TABLE["gone"]
PROGRAM: Mapping[str, Sequence[str]] = _TABLE["program"]
ONE_BIT = frozenset({"onebitadam", "onebitlamb", "zerooneadam"})
"""Optimizers that sent gradients as signs; ``DEEPSPEED_OPTIMIZERS`` of 0.19.8 has none of them."""

_TABLES: tuple[Mapping[str, object], ...] = (SETTINGS, COUNTED, NO_MEMORY, REFUSED, GONE)


def read(extra: Any, path: str, default: Any = None) -> Any:
    """The value of an option in ``backend.extra``; ``default`` where it is not set."""
    for key in path.split("."):
        extra = extra.get(key) if isinstance(extra, Mapping) else None
    return default if extra is None else extra


def named(path: str) -> str:
    """The option's name in these tables: without ``stage3_`` where DeepSpeed accepts both."""
    return path.replace("zero_optimization.stage3_", "zero_optimization.", 1)


def heads(path: str) -> Iterator[str]:
    """The path and every block that contains it: ``a.b.c``, ``a.b``, ``a``."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def line(path: str) -> str | None:
    """The listed option or block that says what an option does to memory; None if there is none."""
    return next((head for head in heads(named(path)) if head in PROGRAM or any(head in t for t in _TABLES)), None)


def top() -> list[str]:
    """The first words of all options."""
    return sorted({head.partition(".")[0] for table in (*_TABLES, PROGRAM) for head in table})


def inside(block: str) -> list[str]:
    """The listed options of a block."""
    return sorted(path for table in _TABLES for path in table if path.startswith(f"{block}."))
