"""Candidates for a place of the command line, by the vocabulary and by what lies in the folders now.

A candidate is a whole word with a short description. One that ends in ``=``, ``.``, ``/``, ``,`` or ``@`` is not yet a
whole word: shells put no space behind it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass

type Candidate = tuple[str, str]

_TOP = {"--help": "verbs, groups and their options", "--version": "the version"}
_WITH_A_LAYOUT = ("run", "check", "show", "prepare")  # Verbs that take ``plan=best``.
_NEWEST = 200  # Runs that are offered, the newest first.


@dataclass(frozen=True, slots=True)
class Completer:
    """The candidates for the last word of a command line, in a folder."""

    vocabulary: JsonObject  # Verbs, options, groups and keys (``launcher.cli.completion.vocabulary``).
    conf: Sequence[Path]  # The folders of configuration, the user's first.
    recipes: Sequence[Path]  # The folders of recipes, the user's first.

    def complete(self, words: Sequence[str], last: str) -> list[Candidate]:
        """The candidates that begin with ``last``, which may be empty, behind ``words``."""
        if "--" in words:
            return list(_files(last))
        verbs = self.vocabulary["verbs"]
        verb = next((word for word in words if not word.startswith("-")), None)
        if verb is None or verb not in verbs:
            found, verb = list(self._of_run(words, last, first=verb is None)), "run"
        else:
            behind = list(words)
            behind.remove(verb)
            found = list(self._of_verb(verb, behind, last))
        takes_keys = any(kind["what"] == "OVERRIDE" for kind in verbs[verb]["words"])
        found = found or (list(self._bare_keys(last)) if takes_keys else [])
        return [each for each in found if verb in _WITH_A_LAYOUT or not each[0].startswith("plan=")]

    def _of_run(self, words: Sequence[str], last: str, *, first: bool) -> Iterator[Candidate]:
        """Words of ``run``, the verb that need not be typed; as the ``first`` word also a verb."""
        if first:
            yield from _beginning(last, ((name, about["help"]) for name, about in self.vocabulary["verbs"].items()))
            yield from _beginning(last, _TOP.items() if last.startswith("-") else ())
        yield from (each for each in self._of_verb("run", words, last) if each[0] not in _TOP or not first)

    def _of_verb(self, verb: str, words: Sequence[str], last: str) -> Iterator[Candidate]:
        kinds, options = (self.vocabulary["verbs"][verb][key] for key in ("words", "options"))
        takes = {name for name, option in options.items() if option["takes"]}
        if words and words[-1] in takes:
            yield from self._of_kind(options[words[-1]], last)
            return
        if last.startswith("-"):
            option, equals, value = last.partition("=")
            if equals and option in options:
                yield from ((f"{option}={word}", text) for word, text in self._of_kind(options[option], value))
            else:
                yield from _beginning(last, ((name, options[name]["help"]) for name in options if name not in words))
            return
        typed = zip(["", *words], words, strict=False)
        given = [word for before, word in typed if not word.startswith("-") and before not in takes]
        if kinds and (len(given) < len(kinds) or kinds[-1]["many"]):
            kind = kinds[min(len(given), len(kinds) - 1)]
            yield from self._of_recipe(given, last) if kind["what"] == "WORD" else self._of_kind(kind, last)
        if verb == "resume" and given:
            yield from self._overrides(last)

    def _of_kind(self, kind: JsonObject, last: str) -> Iterator[Candidate]:
        yield from _beginning(last, _plain(kind["values"]))
        if kind["what"] == "OVERRIDE":
            yield from self._overrides(last)
        if kind["what"] in ("RUN", "LOCK"):
            yield from self._runs(last)
        if kind["what"] in ("PATH", "LOCK"):
            yield from _files(last)

    def _of_recipe(self, given: Sequence[str], last: str) -> Iterator[Candidate]:
        action = given[0] if given else ""
        if action in ("show", "diff", "trust"):
            yield from _beginning(last, _plain(_yaml(self.recipes)))
        if action in ("lock", "diff", "verify") and "=" not in last:
            yield from self._runs(last)
        if action in ("show", "diff", "verify", "trust") and _is_path(last):
            yield from _files(last)
        if action in ("save", "lock", "verify") and len(given) > (action != "lock"):
            yield from self._overrides(last)

    def _overrides(self, last: str) -> Iterator[Candidate]:
        key, equals, value = last.partition("=")
        if equals:
            head, comma, tail = value.rpartition(",")  # Several values of a sweep.
            used = set(head.split(","))
            values = (each for each in self._values(key, tail) if each[0] not in used)
            yield from ((f"{key}={head}{comma}{word}", text) for word, text in values)
            return
        keys = {name: about["help"] for name, about in self.vocabulary["keys"].items()}
        if "." in key:
            yield from _beginning(key, ((f"{name}=", text) for name, text in keys.items()))
            return
        yield from _beginning(key, self._groups())
        yield from _beginning(key, ((f"{name}=", text) for name, text in keys.items() if "." not in name))

    def _bare_keys(self, last: str) -> Iterator[Candidate]:
        """Keys that are typed without their group: ``lr`` for ``optimizer.lr``."""
        for name, about in self.vocabulary["keys"].items():
            if last and name.rpartition(".")[2].startswith(last):
                yield f"{name}=", about["help"]

    def _groups(self) -> Iterator[Candidate]:
        for group, text in self.vocabulary["groups"].items():
            if self._options(group) != ["default"]:
                yield f"{group}=", text
            yield f"{group}.", text
        yield "recipe=", "a shared run; your own words win over it"

    def _values(self, key: str, begun: str) -> Iterator[Candidate]:
        if _is_path(begun):
            yield from _files(begun)
        elif key == "recipe":
            yield from _beginning(begun, _plain(_yaml(self.recipes)))
        elif key in self.vocabulary["groups"]:
            yield from _beginning(begun, _plain(self._options(key)))
        elif key in self.vocabulary["keys"]:
            about = self.vocabulary["keys"][key]
            yield from _beginning(begun, _plain(about["values"]))
            if key == "save.load":
                yield from self._checkpoints(begun)
            if about["path"]:
                yield from _files(begun)

    def _options(self, group: str) -> list[str]:
        return _yaml(folder / group for folder in self.conf)

    def _runs(self, begun: str) -> Iterator[Candidate]:
        sweep, slash, name = begun.rpartition("/")
        names = [f"{sweep}{slash}{found}" for found in _records(Path("runs", sweep), name)]
        if not names and not slash:
            names = _remembered(Path(self.vocabulary["runs"]))
        yield from _beginning(begun, _plain(names))

    def _checkpoints(self, begun: str) -> Iterator[Candidate]:
        run, at, _ = begun.partition("@")
        if not at:
            yield from self._runs(begun)
            return
        steps = [name.removeprefix("step-").lstrip("0") for name in _names(Path("runs", run, "checkpoints"))]
        numbers = sorted((step for step in steps if step.isdecimal() and len(step) < 20), key=int, reverse=True)
        yield from _beginning(begun, _plain(f"{run}@{step}" for step in ["best", *numbers]))


def _beginning(begun: str, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    return (each for each in candidates if each[0].startswith(begun))


def _plain(words: Iterable[str]) -> Iterator[Candidate]:
    return ((word, "") for word in words)


def _is_path(word: str) -> bool:
    return word.startswith(("/", "./", "../", "~"))


def _yaml(folders: Iterable[Path]) -> list[str]:
    """Names of the options in folders; those that begin with ``_`` are not for choosing."""
    names = {name for folder in folders for name in _names(folder)}
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml") and not name.startswith("_"))


def _names(folder: Path) -> list[str]:
    """Names in a folder, but for those that would be read as options."""
    try:
        return [path.name for path in folder.iterdir() if not path.name.startswith("-")]
    except OSError:
        return []


def _records(folder: Path, begun: str) -> list[str]:
    """Names, so begun, of the runs and sweeps in a folder, the newest first, and then of the groups: ``group/``."""
    names = sorted(name for name in _names(folder) if name.startswith(begun))
    found = {name: written for name in names if (written := _written(f"{folder}/{name}"))}
    newest = sorted(found, key=lambda name: (found[name], name), reverse=True)[:_NEWEST]
    if _written(str(folder)):  # In a run or a sweep other folders are no groups.
        return newest
    return [*newest, *(f"{name}/" for name in names if name not in found and _is_group(folder / name))]


def _is_group(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.is_symlink():  # Links may go round.
        return False
    return any(_written(f"{folder}/{each}") or _is_group(folder / each) for each in _names(folder))


def _written(folder: str) -> int:
    """The time at which a run or sweep was recorded in a folder; 0 where there is none."""
    for record in ("spec.json", "sweep.json"):
        with contextlib.suppress(OSError):  # Of ten thousand runs a path object each would take half a second.
            return os.stat(f"{folder}/{record}").st_mtime_ns  # noqa: PTH116
    return 0


def _remembered(path: Path) -> list[str]:
    lines = files.last_lines(path)[-_NEWEST:]
    known = (run.name for run in map(Path, reversed(lines)) if (run / "spec.json").is_file())
    return list(dict.fromkeys(name for name in known if not name.startswith("-")))


def _files(begun: str) -> Iterator[Candidate]:
    """Files and folders; ``~`` is written out, since a shell would leave it as it is behind ``=``."""
    path = f"{files.expanded(begun)}{'/' if begun.endswith('/') else ''}" if begun.startswith("~") else begun
    folder, slash, name = path.rpartition("/")
    for each in sorted(_names(Path(f"{folder}{slash}" or "."))):
        if each.startswith(name) and (name.startswith(".") or not each.startswith(".")):
            whole = f"{folder}{slash}{each}"
            yield (f"{whole}/" if Path(whole).is_dir() else whole), ""
