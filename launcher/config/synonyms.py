"""Synonyms: keys and verbs of other tools, translated in ways out, and the words ``plan=best``, ``checkpointing=auto``.

A tool's spelling counts as the same word in upper or lower case, with hyphens or underscores, and after ``--``.

``plan=best`` stands for the overrides of the layout that ``launch plan`` ranks first. It is not a setting: it is
removed from a command line before composition, and refused by verbs that do not support it. The same holds for
``checkpointing=auto``, which stands for the least recomputation with which the run fits.
"""

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from pathlib import Path

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.units import seconds_of

BEST_KEY = "plan"
BEST = f"{BEST_KEY}=best"
AUTO = "checkpointing=auto"
AUTO_ALONE = "auto works for one run of check, show, run, prepare and rehearse; `launch plan` always searches it"


def plain(word: str) -> str:
    """Return a word in the spelling of the tables: lower case, with underscores, without leading ``-`` and ``+``."""
    return word.lstrip("-+").replace("-", "_").lower()


@cache
def table() -> Mapping[str, Mapping[str, str]]:
    """Return ``synonyms.yaml``; read only when a word is unknown."""
    found: Mapping[str, Mapping[str, str]] = files.load_own(Path(__file__).with_suffix(".yaml"))
    return found


@cache
def by_word() -> Mapping[str, list[str]]:
    """Return ways out by the words of other tools."""
    return {word: ways.split("; ") for ways, words in table()["keys"].items() for word in words.split()}


def ways(key: str, value: str) -> list[str]:
    """Return overrides for a key of another tool, alone or in a group (``tp``, ``parallel.tp``); empty if unknown."""
    seconds = seconds_of(value)
    minutes = value if seconds is None else str(-(-seconds // 60))
    found = by_word().get(plain(key)) or by_word().get(plain(key).rpartition(".")[2]) or []
    first, _, last = (part.strip() for part in value.strip("[]()").partition(","))
    said = [("{}", value), ("{m}", minutes), ("{1}", first), ("{2}", last)]
    return [reduce(lambda way, part: way.replace(part[0], part[1] or "..."), said, way) for way in found]


def options(group: str, value: str) -> list[str]:
    """Return overrides for another tool's name of a group's option; empty if unknown."""
    known = table()["options"].items()
    return [way for ways, words in known if f"{group}={plain(value)}" in words.split() for way in ways.split("; ")]


def correction(error: ConfigError) -> ConfigError:
    """Return the error with ways out for another tool's word, and the reason if that is not supported."""
    found = options(error.path, str(error.found))
    rule = absent(f"{error.path}={plain(str(error.found))}") or error.rule
    return ConfigError(error.path, error.found, rule, found) if found else error


def absent(word: str) -> str | None:
    """Return why an option or a value of another tool is not supported; None if it is unknown."""
    return next((reason for reason, words in table()["absent"].items() if word in words.split()), None)


def verbs(word: str) -> list[str]:
    """Return the verbs that a word may stand for."""
    return [verb for verb, words in table()["verbs"].items() if word.lower() in words.split()]


def without_best(texts: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return the words without ``plan=best``, and True if it was there; raises ConfigErrors for another value."""
    rest = tuple(text for text in texts if text.partition("=")[0] != BEST_KEY or "=" not in text)
    if len(rest) < len(texts) and (wrong := [text for text in texts if text not in (*rest, BEST)]):
        raise ConfigErrors(best_refused(text.partition("=")[2]) for text in wrong)
    return rest, len(rest) < len(texts)


def without_auto(texts: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Return the words without ``checkpointing=auto``, and True if that is the group's last choice.

    Raises ConfigErrors: Keys of the group are set beside it.
    """
    *_, last = ("", *(text for text in texts if text.startswith("checkpointing=")))
    if last != AUTO:
        return tuple(text for text in texts if text != AUTO), False
    rest = tuple(text for text in texts if not text.startswith("checkpointing="))
    if beside := [text.partition("=") for text in rest if text.startswith("checkpointing.")]:
        rule, ways = f"{AUTO} sets the keys of this group", ["checkpointing=full", "checkpointing=selective"]
        raise ConfigErrors(ConfigError(key, value, rule, ways) for key, _, value in beside)
    return rest, True


def best_refused(value: str) -> ConfigError:
    """Return the error for a ``plan=VALUE`` that is not supported."""
    if value == "best":
        rule = "it works in check, show, run and -m: here type the overrides that `launch plan` prints"
        return ConfigError(BEST_KEY, value, rule, ["launch plan"])
    rule = "its only value is best, the layout that `launch plan` ranks first; set your own layout with its overrides"
    return ConfigError(BEST_KEY, value, rule, [BEST, "parallel=fsdp"])
