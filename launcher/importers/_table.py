"""Rows of a table that says, of each key of another program's file, what says it here, or why it is left out.

A row acts on keys that no row before it entered. ``differs`` is what a user should know of the difference; it is the
effect in the list of what is left out, and stands beside the key in docs/coming-from.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from launcher.base.frozen import dataclass
from launcher.config import recipes
from launcher.config.ledger import OPEN, Imported
from launcher.importers._reading import Reading
from launcher.spec.parse import OPEN_NODES, accepts, kinds

type Enter = Callable[[Reading, str], None]

_KEY = re.compile(r"[a-z_]+\.[a-z_.]+\Z")

OFF: tuple[Any, ...] = (None, False, 0, 0.0, "", "false", "no", "none", [], {})
"""Values with which a switch, a number or a list says nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """Keys that end in the same way."""

    keys: tuple[str, ...]  # Dotted paths; a path stands for all keys below it, too.
    ours: str  # What says them here, as typed; empty where nothing does.
    differs: str  # What differs, or why they are left out.
    enter: Enter
    tells: bool = True  # False for keys that the documentation need not list: they change no training.


def apply(rows: Iterable[Row], reading: Reading) -> None:
    """Enter the open keys of a file by the rows; what none knows stays open, and is left out as unknown."""
    for key, value in reading.ledger.values.items():
        if (value is None or value == {}) and reading.ledger.is_open(key):
            reading.ledger.default(key)
    for row, key in _matches(tuple(rows), reading):
        if not reading.ledger.is_open(key):
            continue
        if row.tells and _is_open(reading.ledger.values[key]):
            asked = f": set {row.ours}" if _KEY.match(row.ours) else ""
            reading.ledger.leave(key, f"the file leaves it open{asked}")
        else:
            row.enter(reading, key)


def _matches(rows: Sequence[Row], reading: Reading) -> list[tuple[Row, str]]:
    """Every row with the keys of the file that it is for, in the order of the rows."""
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        for name in row.keys:
            places.setdefault(name, []).append(place)
    found = []
    for order, key in enumerate(reading.ledger.values):
        parts = key.split(".")
        names = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
        found += [(place, order, key) for name in names for place in places.get(name, ())]
    return [(rows[place], key) for place, _, key in sorted(found)]


def _is_open(value: object) -> bool:
    """True for ``???`` and for a reference to another key."""
    return isinstance(value, str) and (value == OPEN or value.startswith("${"))


def imported(reading: Reading, *, summary: str, source: str) -> Imported:
    """The four lists of a file that is read, less settings that no run here takes."""
    for setting in [each for each in (*reading.settings, *reading.choose) if not _accepted(reading, each)]:
        _leave_setting(reading, setting)
    return reading.ledger.imported(
        summary=summary,
        source=source,
        choose=reading.choose,
        settings=reading.settings,
        not_understood=reading.notes,
        errors=reading.errors,
    )


def _accepted(reading: Reading, setting: str) -> bool:
    return "." not in setting or setting.startswith(OPEN_NODES) or accepts(setting, reading.settings[setting])


def _leave_setting(reading: Reading, setting: str) -> None:
    """Take back a setting that there is not, or that takes no such value; keys that say it are left out for it."""
    value = reading.settings.pop(setting, None) if "." in setting else reading.choose.pop(setting)
    keys = reading.ledger.saying(setting)
    if setting in kinds():
        for key in keys:
            reading.wrong(key, f"is a value that {setting} takes here, and {value!r} is none")
        return
    for key in keys:
        reading.ledger.leave(key, f"there is no setting {setting} here")
    if not keys:
        reading.notes.append(
            f"its program goes by {setting}={value} where the file says nothing, which no setting says here"
        )


def defaults(reading: Reading, settings: Mapping[str, Any]) -> None:
    """Settings for what the file leaves to its program, whose default differs from the one here."""
    evaluates = {"train.eval_every", "train.evals_per_epoch"} & reading.settings.keys()
    for setting, value in settings.items():
        if setting == "data.eval_fraction" and not evaluates:
            continue  # Nothing is held out then.
        if setting not in reading.settings and setting not in reading.choose:
            (reading.settings if "." in setting else reading.choose)[setting] = value


def number(keys: str, setting: str, differs: str = "") -> Row:
    """Numbers that a setting takes as they are."""
    return Row(tuple(keys.split()), setting, differs, lambda reading, key: reading.say_number(key, setting))


def count(keys: str, setting: str, differs: str = "", *, least: int = 0) -> Row:
    """Whole numbers that a setting takes as they are."""
    return Row(tuple(keys.split()), setting, differs, lambda reading, key: reading.say_count(key, setting, least))


def flag(keys: str, setting: str, differs: str = "") -> Row:
    """Switches that a setting takes as they are."""
    return Row(tuple(keys.split()), setting, differs, lambda reading, key: reading.say_flag(key, setting))


def text(keys: str, setting: str, differs: str = "") -> Row:
    """Words that a setting takes as they are."""
    return Row(tuple(keys.split()), setting, differs, lambda reading, key: say_text(reading, key, setting))


def say_text(reading: Reading, key: str, setting: str) -> None:
    """Say a key's text by a setting, or by the choice of a group; anything but text is an error."""
    value = reading.value(key)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        reading.wrong(key, f"is text in {reading.file}")
    else:
        choose(reading, key, {setting: str(value)})


def choose(reading: Reading, key: str, settings: Mapping[str, Any]) -> None:
    """Say a key by settings and by choices of groups, whose names have no dot."""
    reading.choose |= {name: str(value) for name, value in settings.items() if "." not in name}
    reading.settings |= {name: value for name, value in settings.items() if "." in name}
    reading.ledger.say(key, *settings)


def words(keys: str, setting: str, table: Mapping[str, Any], otherwise: str, differs: str = "") -> Row:
    """Words, each with the value of the setting or the settings that say it; ``otherwise`` is the effect of others."""

    def enter(reading: Reading, key: str) -> None:
        value = reading.value(key)
        found = table.get(str(value).lower(), table) if not isinstance(value, list | dict) else table
        if found is table:
            reading.ledger.leave(key, otherwise.replace("{}", str(value)))
        elif found is None:
            reading.ledger.default(key)
        else:
            choose(reading, key, found if isinstance(found, dict) else {setting: found})

    return Row(tuple(keys.split()), setting, differs or "other words are refused", enter)


def switch(keys: str, settings: Mapping[str, Any], differs: str = "") -> Row:
    """Switches that these settings say where they are on; where they are off, the run is the same here."""

    def enter(reading: Reading, key: str) -> None:
        if reading.flag(key):
            choose(reading, key, settings)
        elif reading.ledger.is_open(key):
            reading.ledger.default(key)

    ours = ", ".join(f"{name}={recipes.literal(value)}" for name, value in settings.items())
    return Row(tuple(keys.split()), ours, differs, enter)


def positive(keys: str, setting: str, differs: str = "") -> Row:
    """Whole numbers that a setting takes where they are above 0; else the run is the same here."""

    def enter(reading: Reading, key: str) -> None:
        if (reading.number(key) or 0) > 0:
            reading.say_count(key, setting, 1)
        elif reading.ledger.is_open(key):
            reading.ledger.default(key)

    return Row(tuple(keys.split()), setting, differs, enter)


def usual(keys: str, values: object, effect: str) -> Row:
    """Keys with which the run is the same here at one of these values, and is another at any other."""
    known = values if isinstance(values, tuple) else (values,)

    def enter(reading: Reading, key: str) -> None:
        value = reading.value(key)
        if any(value is each or (type(value) is type(each) and value == each) for each in known):
            reading.ledger.default(key)
        else:
            reading.ledger.leave(key, effect)

    return Row(tuple(keys.split()), "", effect, enter)


def off(keys: str, effect: str) -> Row:
    """Keys that only change the run where they are switched on, and cannot be said."""
    return usual(keys, OFF, effect)


def idle(keys: str, why: str) -> Row:
    """Keys that change nothing of the training."""

    def enter(reading: Reading, key: str) -> None:
        reading.ledger.leave(key, f"no effect: {why}", matters=False)

    return Row(tuple(keys.split()), "", why, enter, tells=False)


def other(keys: str, effect: str) -> Row:
    """Keys that a run here is without, with the same maths, memory and data."""
    known = tuple(keys.split())

    def enter(reading: Reading, key: str) -> None:
        if reading.value(key) in OFF:
            reading.ledger.default(key)
        else:
            reading.ledger.leave(key, effect, matters=False)

    return Row(known, "", effect, enter)


def by(keys: str, ours: str, differs: str, enter: Enter) -> Row:
    """Keys that a function of their own enters."""
    return Row(tuple(keys.split()), ours, differs, enter)


def later(keys: str, ours: str, differs: str) -> Row:
    """Keys that are said together once all others are."""
    return Row(tuple(keys.split()), ours, differs, lambda reading, key: None)


def revision(keys: str) -> Row:
    """The revision of the model that a key before it names."""

    def enter(reading: Reading, key: str) -> None:
        if reading.value(key) == "main" or "model" not in reading.choose:
            reading.ledger.default(key)
        else:
            choose(reading, key, {"model": f"{reading.choose['model']}@{reading.value(key)}"})

    return Row(tuple(keys.split()), "model", "behind the name: OWNER/NAME@REVISION", enter)


def known_keys(rows: Sequence[Row]) -> set[str]:
    """Every key of a table."""
    return {key for row in rows for key in row.keys}
