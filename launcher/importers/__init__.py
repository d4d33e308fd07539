"""Existing configurations as overrides and as a recipe: one module a format, with ``read(text, path) -> Imported``.

Reading is pure. Every key of a file ends in exactly one of four lists: said here by overrides, the default here too,
kept for the engine (``backend.extra``), or left out, with the effect of that (``launcher.config.ledger``).

Before an importer reads a file, :func:`refuse_other` looks at the names at its top, which are found without reading it
whole, so that axolotl's YAML is not called broken JSON: such files hold tags, references and templates of their own.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from launcher.base import files, registry
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.config.ledger import UNKNOWN, Imported, Ledger, LeftOut, Translated

__all__ = ["UNKNOWN", "Imported", "Ledger", "LeftOut", "Translated", "refuse_other"]
_KEY = re.compile(r"^(?:([A-Za-z_-][\w.-]*)[ \t]*[:=](?:[ \t]|$)|\[\[?([A-Za-z_][\w.-]*)\]\]?[ \t\r]*$)", re.MULTILINE)
"""A key at the beginning of a line of YAML or TOML, and the head of a table of TOML."""

_PYTHON = re.compile(r"^(?:from [\w.]+ import |import [\w.]+|def \w+\()", re.MULTILINE)
_CLASSES = re.compile(
    r"\b(SFTConfig|DPOConfig|KTOConfig|GRPOConfig|RewardConfig|TrainingArguments|Trainer\.Config|ConfigContainer)\b"
)
"""Classes of which one says whose Python a file is."""


@dataclass(frozen=True, slots=True)
class _Format:
    """A program's files: their importer, or the name one would have, and their name in messages."""

    kind: str
    name: str
    signs: tuple[str, ...]  # Sets of keys in words; a file of this format has at least one of them whole.
    instead: str = ""  # What can be done with it where no importer reads it.


@cache
def _formats() -> tuple[_Format, ...]:
    found = files.load_own(Path(__file__).parent / "tables" / "formats.yaml")
    return tuple(_Format(**{**row, "signs": tuple(row["signs"])}) for row in found)


def refuse_other(kind: str, text: str, path: str) -> None:
    """Refuse by ConfigErrors a file that looks like another format, with the keys that say so and the ways out."""
    keys = set(_keys(text, path))
    alike = [(each, sign) for each in _formats() for sign in map(str.split, each.signs) if keys.issuperset(sign)]
    if not alike or any(key.startswith("--") for key in keys):
        return
    if any(each.kind == kind and not each.instead for each, _ in alike):
        return
    found, sign = alike[0]
    rule, way_out = f"this looks like {found.name} ({', '.join(sorted(sign))})", []
    if found.kind in registry.names("importers") and not found.instead:
        way_out = [f"launch import {found.kind.replace('_', '-')} {path}"]
    else:
        rule += f", which is not read here: {found.instead}"
    raise ConfigErrors([ConfigError(path, None, rule, way_out)])


def _keys(text: str, path: str) -> Iterator[str]:
    """The names at the top of JSON, YAML or TOML, and telling classes of Python; none of a script."""
    if path.endswith(".py") or (not text.startswith("#!") and _PYTHON.search(text)):
        yield from _CLASSES.findall(text)
        return
    if path.endswith((".sh", ".bash", ".slurm", ".sbatch", ".txt")) or text.startswith("#!"):
        return
    if text.lstrip()[:1] == "{":
        try:
            content = files.parse_json(text)
        except ValueError:
            return
        yield from content if isinstance(content, dict) else ()
    else:
        yield from (match[1] or match[2] for match in _KEY.finditer(text))
