"""Errors for important keys of another program's file that are left out; warnings if the user continues without them.

A key is resolved, and not an error, if the user sets what its effect asks for ("set model.vocab_size",
"+backend.extra.KEY=VALUE hands it on").
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from launcher.base.errors import ConfigError
from launcher.config.ledger import Imported, LeftOut

NO_EFFECT = "no effect: "  # Prefix of the effect of a key that does not change the training.
_SETTING = re.compile(r"\bset ([a-z_]+\.[a-z_][\w.]*\w)(=\d+(?![.\w]))?(?: \(with ([a-z_]+=\w+)\))?")
_HANDED_ON = re.compile(r"\+(backend\.extra\.[\w.-]+)=[^\s;,()]+")
_VARIABLE = re.compile(r"--set (?:[A-Za-z_]\w*|[1-9]\d?)(?:=[^\s;,()]+)?")
_LONGEST = 100  # Characters of a value in a message.


def _mattering(left_out: Iterable[LeftOut], given: Collection[str] = ()) -> list[LeftOut]:
    return [left for left in left_out if left.matters and not settings_asked_for(left.effect) & {*given}]


def settings_asked_for(sentence: str) -> set[str]:
    """Return the settings that a sentence about a file asks for."""
    return {*(match[1] for match in _SETTING.finditer(sentence)), *_HANDED_ON.findall(sentence)}


def errors(file: str, left_out: Iterable[LeftOut], given: Collection[str], *, partial: str) -> list[ConfigError]:
    """Return an error per key that matters; keys of one block left out for the same reason share an error."""
    found = []
    for left in _in_blocks(_mattering(left_out, given)):
        handed_on = (match[0] for match in _HANDED_ON.finditer(left.effect))
        asked = (f"{choice} {key}{to or '=...'}".lstrip() for key, to, choice in _SETTING.findall(left.effect))
        ways = [*dict.fromkeys((*_VARIABLE.findall(left.effect), *handed_on, *asked)), partial]
        found.append(ConfigError(f"{file}: {left.key}", short(left.value), f"it is left out: {left.effect}", ways))
    return found


def warnings(file: str, left_out: Iterable[LeftOut], given: Collection[str]) -> list[ConfigError]:
    """Return the same keys as warnings about a run that continues without them."""
    return [
        ConfigError(f"{file}: {left.key}", short(left.value), f"the run goes without it: {left.effect}")
        for left in _in_blocks(_mattering(left_out, given))
    ]


def _in_blocks(left_out: Iterable[LeftOut]) -> Iterator[LeftOut]:
    for (block, effect), group in groupby(left_out, lambda left: (left.key.rpartition(".")[0], left.effect)):
        found = list(group)
        if len(found) == 1 or not block:
            yield from found
        else:
            values = {left.key.removeprefix(f"{block}."): left.value for left in found}
            yield LeftOut(key=block, value=values, effect=effect, matters=True)


def counted(imported: Imported) -> str:
    """Return the number of keys in each list of an imported file, in words."""
    lists: Sequence[Sequence[Any]] = (imported.said, imported.default, imported.kept, imported.left_out)
    number = sum(map(len, lists))
    said, default, kept, left = map(len, lists)
    keys = f"{number} key{'' if number == 1 else 's'}"
    return f"{keys}: {said} imported, {default} equal to defaults, {kept} passed to the engine, {left} left out"


def short(value: Any) -> Any:
    """Return a value for a message, with a long text, list or mapping cut."""
    text = value if isinstance(value, str) else str(value)
    return value if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
