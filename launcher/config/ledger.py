"""A ledger of another program's file: each key is imported, equal to a default, passed to the engine, or left out.

A :class:`Ledger` holds these four lists while a file is read, so that a key that a reader forgets is reported as left
out, and no key is in two lists. The readers are ``launcher.importers`` and, for a model's ``config.json``,
``launcher.config.hub.reading``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from launcher.base import secret
from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.config.recipes import SCHEMA, literal
from launcher.spec.parse import closest

OPEN = "???"  # A mandatory value that is not set yet, as Hydra marks it.

type Settings = dict[str, Any]
"""Values by the key of a run that they set: ``{"train.steps": 100}``."""

UNKNOWN = "launch does not know this key"  # The effect of leaving out a key that no importer knows.


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated:
    """A key of the file and the overrides that it becomes."""

    key: str
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A key of the file that the run goes without."""

    key: str  # Its dotted path in the file, or the flag as typed.
    value: Any  # Its value there.
    effect: str  # How the run differs because of it, as a clause.
    # True if it changes the math, the memory or the data, so that no verdict is given without ``--partial``.
    matters: bool

    def as_dict(self) -> JsonObject:
        """Return its entry in ``launch import --json``, without possible secrets."""
        return {"key": self.key, "value": secret.shown(self.value, self.key), "effect": secret.redacted(self.effect)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A file of another program as overrides and as a recipe, with the fate of each key."""

    overrides: tuple[str, ...]  # Choices and settings as typed, choices first.
    recipe: JsonObject  # The same as a recipe (docs/contract/commands.md).
    said: tuple[Translated, ...] = ()  # Keys that became overrides.
    default: tuple[str, ...] = ()  # Keys that agree with a default of launch.
    kept: tuple[str, ...] = ()  # Keys passed to the engine unchanged, in ``backend.extra`` or ``model.extra``.
    left_out: tuple[LeftOut, ...] = ()  # The other keys.
    # Sentences about the file besides its keys: variables without a value, words that belong to no key.
    not_understood: tuple[str, ...] = ()
    # Why the file cannot become a run although its keys could be read; the run is then not checked.
    errors: tuple[ConfigError, ...] = ()

    def as_dict(self) -> JsonObject:
        """Return the value of ``import`` in ``launch import --json`` (docs/contract/documents.md)."""
        return {
            "overrides": list(self.overrides),
            "recipe": self.recipe,
            "said": [{"key": said.key, "overrides": list(said.overrides)} for said in self.said],
            "default": list(self.default),
            "kept": list(self.kept),
            "left_out": [left.as_dict() for left in self.left_out],
            "not_understood": list(self.not_understood),
        }


type _Entry = tuple[str, ...] | Literal["default", "kept"] | LeftOut
"""The settings and groups that a key becomes, or the list that it is in."""


@dataclass(slots=True)
class Ledger:
    """Records the list that each key of a file belongs to; the last entry of a key counts."""

    values: Mapping[str, Any]  # Every key of the file with its value, in the file's order.
    known: set[str] = field(default_factory=set)  # Keys that its reader knows, some of them at least.
    _entries: dict[str, _Entry] = field(default_factory=dict)

    def say(self, key: str, *paths: str) -> None:
        """Enter a key that becomes these settings (``train.steps``) and chosen groups (``precision``).

        If none of them is set in the end, the key counts as default; a key that the file does not have is ignored.
        """
        self._enter(key, tuple(dict.fromkeys((*self._said(key), *paths))))

    def default(self, *keys: str) -> None:
        """Enter keys that agree with a default of launch."""
        for key in keys:
            self._enter(key, "default")

    def keep(self, *keys: str) -> None:
        """Enter keys that are passed to the engine unchanged."""
        for key in keys:
            self._enter(key, "kept")

    def leave(self, key: str, effect: str, *, matters: bool = True) -> None:
        """Enter a key that the run goes without (:class:`LeftOut`)."""
        self._enter(key, LeftOut(key=key, value=self.values.get(key), effect=effect, matters=matters))

    def adopt(self, prefix: str, inner: "Ledger") -> None:
        """Enter the keys of a part of the file, which has a list of its own, as they are there, behind a prefix."""
        for key, entry in inner._entries.items():
            whole = f"{prefix}{key}"
            self._enter(whole, replace(entry, key=whole) if isinstance(entry, LeftOut) else entry)

    def is_open(self, key: str) -> bool:
        """True if the file has the key and it is in no list yet."""
        return key in self.values and key not in self._entries

    def saying(self, path: str) -> list[str]:
        """The keys that a setting or a chosen group says."""
        return [key for key in self._entries if path in self._said(key)]

    def _enter(self, key: str, entry: _Entry) -> None:
        if key in self.values:
            self._entries[key] = entry

    def _said(self, key: str) -> tuple[str, ...]:
        entry = self._entries.get(key)
        return entry if isinstance(entry, tuple) else ()

    def imported(
        self,
        *,
        summary: str,
        source: str,
        choose: Mapping[str, str],
        settings: Mapping[str, Any],
        not_understood: Iterable[str] = (),
        errors: Iterable[ConfigError] = (),
    ) -> Imported:
        """Return choices, settings and the four lists; keys that were not entered are left out as unknown."""
        words = {group: f"{group}={option}" for group, option in choose.items()}
        words |= {key: f"{key}={literal(value)}" for key, value in settings.items()}
        for key in self.values:
            if (effect := self._left_open(key, settings)) is not None:
                self.leave(key, effect)
        said = {
            key: tuple(dict.fromkeys(words[path] for path in self._said(key) if path in words)) for key in self.values
        }
        recipe = {"schema": SCHEMA, "summary": summary, "source": source, "choose": dict(choose), "set": dict(settings)}
        entries = [(key, self._entries[key]) for key in self.values]
        return Imported(
            overrides=tuple(words.values()),
            recipe=recipe,
            said=tuple(Translated(key=key, overrides=said[key]) for key in self.values if said[key]),
            default=tuple(
                key for key, entry in entries if entry == "default" or (isinstance(entry, tuple) and not said[key])
            ),
            kept=tuple(key for key, entry in entries if entry == "kept"),
            left_out=tuple(entry for _, entry in entries if isinstance(entry, LeftOut)),
            not_understood=tuple(dict.fromkeys(not_understood)),
            errors=tuple(errors),
        )

    def _left_open(self, key: str, settings: Mapping[str, Any]) -> str | None:
        """The effect of a key that is in no list, or whose value or setting the file leaves open; else None."""
        if isinstance(self._entries.get(key), LeftOut):
            return None
        paths = [path for path in self._said(key) if path in settings]
        asked = [path for path in paths if settings[path] in (OPEN, "")]
        if self.values[key] == OPEN or asked:
            return "the file leaves it open" + "".join(f": set {path}" for path in (asked or paths)[:1])
        return "; it knows ".join((UNKNOWN, *closest(key, sorted(self.known))[:1])) if self.is_open(key) else None


def word_in(table: Mapping[str, str], value: object) -> str | None:
    """Return the table's entry for a text; None if it is not in the table, or not a text."""
    return table.get(value) if isinstance(value, str) else None


def name_from(path: str) -> str:
    """Return a name for a model: the last part of its path, in characters that need no quotes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(path).name).strip("-.") or "imported"


def leaves(values: Mapping[str, Any], prefix: str = "") -> JsonObject:
    """Return every leaf of nested mappings by its dotted path; a list or an empty mapping is one leaf."""
    found: JsonObject = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        found |= leaves(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return found
