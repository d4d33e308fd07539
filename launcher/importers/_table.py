"""Tables that say, of each key of another program's file, what says it here, or why it is left out.

A table is a YAML of ``tables/``: a list of rows, whose first entry is a kind (:data:`_KINDS`) with its keys between
blanks. A row acts on keys that no row before it entered. ``differs`` is what a user should know of the difference; it
stands beside the key in docs/coming-from.md. ``effect`` and ``why`` are the reasons in the list of what is left out.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.typed import is_number
from launcher.config import recipes
from launcher.config.ledger import OPEN, Imported
from launcher.importers._reading import KeyReader
from launcher.spec.parse import OPEN_NODES, accepts, kinds

type Enter = Callable[[KeyReader, str], None]

_FOLDER = Path(__file__).with_name("tables")
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


def table(name: str) -> Any:
    """The content of ``tables/NAME.yaml``."""
    return files.load_own(_FOLDER / f"{name}.yaml")


def program(name: str, words: str) -> list[Any]:
    """Defaults and words of a program of ``tables/programs.yaml``, in the order that they are asked for."""
    found = table("programs")[name]
    return [found[word] for word in words.split()]


def rows(name: str, *by: Callable[..., None], **shared: Sequence[Row]) -> tuple[Row, ...]:
    """The rows of ``tables/NAME.yaml``.

    A row ``by`` is entered by the function ``call``, one of ``by``, and so is one of a kind that is such a function's
    name, which gets the row, too; ``rows`` stands for rows that peers share.
    """
    calls = {function.__name__.lstrip("_"): function for function in by}
    found: list[Row] = []
    for spec in table(name):
        found += shared[spec["rows"]] if "rows" in spec else [_row(spec, calls)]
    return tuple(found)


def _row(spec: JsonObject, calls: Mapping[str, Callable[..., None]]) -> Row:
    kind, keys = next(iter(spec.items()))
    sets = ", ".join(f"{name}={recipes.literal(value)}" for name, value in spec.get("sets", {}).items())
    told = (spec[name] for name in ("differs", "effect", "why") if name in spec)
    enter = calls[spec["call"]] if kind == "by" else partial(_KINDS.get(kind) or calls[kind], spec)
    if not _CONDITIONS.isdisjoint(spec):
        enter = partial(_enter_where, spec, enter)
    differs = next(told, "other words are refused" if kind == "words" else "")
    return Row(tuple(keys.split()), spec.get("says", sets), differs, enter, tells=kind != "idle")


def under(rows: Iterable[Row], *prefixes: str) -> tuple[Row, ...]:
    """The same rows for keys behind each of these prefixes."""
    return tuple(replace(row, keys=tuple(f"{start}{key}" for start in prefixes for key in row.keys)) for row in rows)


def apply(rows: Sequence[Row], reading: KeyReader) -> None:
    """Enter the open keys of a file by the rows; what none knows stays open, and is left out as unknown."""
    reading.ledger.known.update(key for row in rows for key in row.keys)
    for key, value in reading.ledger.values.items():
        if (value is None or value == {}) and reading.ledger.is_open(key):
            reading.ledger.default(key)
    for row, key in _matches(rows, reading):
        if not reading.ledger.is_open(key):
            continue
        if row.tells and _is_open(reading.ledger.values[key]):
            asked = f": set {row.ours}" if _KEY.match(row.ours) else ""
            reading.ledger.leave(key, f"the file leaves it open{asked}")
        else:
            row.enter(reading, key)


def _matches(rows: Sequence[Row], reading: KeyReader) -> list[tuple[Row, str]]:
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
    return isinstance(value, str) and (value == OPEN or value.startswith("${"))


def imported(reading: KeyReader, name: str, program: str) -> Imported:
    """The four lists of a program's file that is read, less settings that no run here takes."""
    for setting in (*reading.settings, *reading.choose):
        if "." in setting and not setting.startswith(OPEN_NODES) and not accepts(setting, reading.settings[setting]):
            _leave_setting(reading, setting)
    return reading.ledger.imported(
        summary=f"{name} by {program}",
        source=f"{'an' if program[0] in 'aeiou' else 'a'} {program} configuration",
        choose=reading.choose,
        settings=reading.settings,
        not_understood=reading.notes,
        errors=reading.errors,
    )


def _leave_setting(reading: KeyReader, setting: str) -> None:
    """Take back a setting that there is not, or that takes no such value; keys that say it are left out for it."""
    value = reading.settings.pop(setting, None) if "." in setting else reading.choose.pop(setting)
    keys = reading.ledger.saying(setting)
    if setting in kinds():
        for key in keys:
            reading.wrong(key, f"is a value that {setting} takes here, and {value!r} is none")
        return
    for key in keys:
        reading.ledger.leave(key, f"launch has no setting {setting}")
    if not keys:
        reading.notes.append(
            f"its program goes by {setting}={value} where the file says nothing, which no setting says here"
        )


def defaults(reading: KeyReader, settings: Mapping[str, Any]) -> None:
    """Settings for what the file leaves to its program, whose default differs from the one here."""
    evaluates = {"train.eval_every", "train.evals_per_epoch"} & reading.settings.keys()
    for setting, value in settings.items():
        if setting == "data.eval_fraction" and not evaluates:
            continue  # Nothing is held out then.
        if setting not in reading.settings and setting not in reading.choose:
            (reading.settings if "." in setting else reading.choose)[setting] = value


def say_text(reading: KeyReader, key: str, setting: str) -> None:
    """Say a key's text by a setting, or by the choice of a group; anything but text is an error."""
    value = reading.value(key)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        reading.wrong(key, f"is text in {reading.file}")
    else:
        choose(reading, key, {setting: str(value)})


def choose(reading: KeyReader, key: str, settings: Mapping[str, Any]) -> None:
    """Say a key by settings and by choices of groups, whose names have no dot."""
    reading.choose |= {name: str(value) for name, value in settings.items() if "." not in name}
    reading.settings |= {name: value for name, value in settings.items() if "." in name}
    reading.ledger.say(key, *settings)


def usual(reading: KeyReader, key: str, values: Iterable[Any], effect: str, *, matters: bool = True) -> None:
    """Enter a key with which the run is the same here at one of these values, and is another at any other."""
    if _is_one_of(reading.value(key), values):
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, effect, matters=matters)


def _is_one_of(value: Any, values: Iterable[Any]) -> bool:
    """True if it is one of the values; unlike in Python, 1 is not True."""
    return any(value == each and isinstance(value, bool) is isinstance(each, bool) for each in values)


def _words(row: JsonObject, reading: KeyReader, key: str) -> None:
    """Say a word, where the row says ``last`` that behind its dots, by its value of the setting or by its settings.

    Any other is left out with the effect ``otherwise``, or is wrong.
    """
    table, value = row["table"], reading.value(key)
    word = str(value).rpartition(".")[2] if row.get("last") else str(value)
    known = not isinstance(value, list | dict) and word.lower() in table
    found = table[word.lower()] if known else None
    if not known and "wrong" in row:
        reading.wrong(key, row["wrong"])
    elif not known:
        effect = row.get("otherwise", "").replace("{}", word)
        reading.ledger.leave(key, effect, matters=row.get("matters", True))
    elif found is None:
        reading.ledger.default(key)
    else:
        choose(reading, key, found if isinstance(found, dict) else {row["says"]: found})


def _switch(row: JsonObject, reading: KeyReader, key: str) -> None:
    if reading.flag(key):
        choose(reading, key, row["sets"])
    elif "without" in row and reading.ledger.is_open(key):
        choose(reading, key, row["without"])
    elif reading.ledger.is_open(key):
        reading.ledger.default(key)


def _betas(_row: JsonObject, reading: KeyReader, key: str) -> None:
    value = reading.value(key)
    if isinstance(value, list) and len(value) == 2 and all(map(is_number, value)):
        reading.say(key, {"optimizer.beta1": value[0], "optimizer.beta2": value[1]})
    else:
        reading.wrong(key, f"is a list of two numbers in {reading.file}", ['"betas": [0.9, 0.999]'])


def _kept(_row: JsonObject, reading: KeyReader, key: str) -> None:
    reading.settings[f"backend.extra.{key.rpartition('.')[2]}"] = reading.value(key)
    reading.ledger.keep(key)


def _revision(_row: JsonObject, reading: KeyReader, key: str) -> None:
    if reading.value(key) == "main" or "model" not in reading.choose:
        reading.ledger.default(key)
    else:
        choose(reading, key, {"model": f"{reading.choose['model']}@{reading.value(key)}"})


_KINDS: Mapping[str, Callable[[JsonObject, KeyReader, str], None]] = {
    # Numbers, whole numbers, switches, texts and any other values that a setting takes as they are.
    "number": lambda row, reading, key: reading.say_number(key, row["says"], row.get("times", 1)),
    "count": lambda row, reading, key: reading.say_count(key, row["says"], row.get("least", 0), row.get("most")),
    "flag": lambda row, reading, key: reading.say_flag(key, row["says"]),
    "text": lambda row, reading, key: say_text(reading, key, row["says"]),
    "value": lambda row, reading, key: reading.say(key, {row["says"]: reading.value(key)}),
    # Words, each with its value of the setting or with its settings; others are left out, or are wrong.
    "words": _words,
    # Switches that some settings say where they are on; off, ``without`` says them, or the run is the same here.
    "switch": _switch,
    # Keys that a setting says whose value other keys give.
    "said": lambda row, reading, key: reading.ledger.say(key, row["says"]),
    # Keys with which the run is the same here, whatever they say.
    "default": lambda row, reading, key: reading.ledger.default(key),
    # Keys with which it is the same at one of some values.
    "usual": lambda row, reading, key: usual(reading, key, row["at"], row["effect"]),
    # Keys that the run does not have here, whatever they say.
    "left": lambda row, reading, key: reading.ledger.leave(key, row["effect"]),
    # Keys that only change the run where they are switched on, and cannot be said.
    "refused": lambda row, reading, key: usual(reading, key, OFF, row["effect"]),
    # Keys that a run here is without, with the same maths, memory and data, unless they are off.
    "other": lambda row, reading, key: usual(reading, key, row.get("at", OFF), row["effect"], matters=False),
    # Keys that change nothing of the training.
    "idle": lambda row, reading, key: reading.ledger.leave(key, f"no effect: {row['why']}", matters=False),
    # Both betas of Adam in a list.
    "betas": _betas,
    # Keys that are said together, before or behind all others.
    "later": lambda row, reading, key: None,
    # Arguments of the engine's own, handed to it under the same name.
    "kept": _kept,
    # The revision of the model that a key before it names.
    "revision": _revision,
}


def _is(value: Any, values: Any) -> bool:
    """True for one of some values in any case, one that is on or off, a number above 1 (``many``) or 0 (``some``)."""
    if isinstance(values, bool):
        return (value not in OFF) is values
    if isinstance(values, list):
        return _is_one_of(value.lower() if isinstance(value, str) else value, values)
    return is_number(value) and value > (1 if values == "many" else 0)


def _holds(row: JsonObject, reading: KeyReader, key: str) -> bool:
    """True where choices and settings (``where``), and keys of the file (``beside``), are as a row asks.

    A key that begins with a dot is one of the same block.
    """
    said = {**reading.choose, **reading.settings}
    block = key.rpartition(".")[0]
    return all(_is(said.get(path), values) for path, values in row.get("where", {}).items()) and all(
        _is(reading.plain(f"{block}{other}" if other.startswith(".") else other), values)
        for other, values in row.get("beside", {}).items()
    )


_CONDITIONS = frozenset({"same", "when", "where", "beside"})


def _enter_where(row: JsonObject, enter: Enter, reading: KeyReader, key: str) -> None:
    """Enter a key that acts under a condition.

    ``when`` are the values that the row is for: with any other the next row of that key acts. ``where`` are choices or
    settings, ``beside`` other keys of the file, with values that it acts with; ``else`` says why it is idle without, or
    the next row of that key acts. ``same`` are values with which the run is the same.
    """
    when = row.get("when")
    if "when" in row and not _is(reading.plain(key) if isinstance(when, list) else reading.number(key), when):
        return
    if _is_one_of(reading.value(key), row.get("same", ())):
        reading.ledger.default(key)
    elif _holds(row, reading, key):
        enter(reading, key)
    elif "else" in row:
        beside = [reading.value(other) for other in row.get("beside", ())]
        reading.idle(row["else"].format(*("no" if each is None else each for each in beside)), key)
