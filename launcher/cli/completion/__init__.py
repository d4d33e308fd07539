"""Shell completion: ``launch __complete SHELL ...`` prints the candidates for the shell's script, one per line.

``launch completion SHELL`` prints that script, which calls back at each Tab; the answer must come without a noticeable
delay. ``vocabulary`` caches in a file what only the verbs' parsers and the schema know; options of groups, recipes,
runs and files are looked up in the folders each time.

zsh and fish pass the words after ``launch``, ending with the one at the cursor. bash passes the line up to the cursor,
because it splits words at ``=``, and the part of the last word that it will replace.
"""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.package import shipped
from launcher.cli.completion import vocabulary

_SPECIAL = {"": frozenset(" \t\"'\\$`&|;<>()*?[]{}!#~"), '"': frozenset('"\\$`'), "'": frozenset()}
"""Characters that bash requires to be escaped, by the quote that is open."""

_NEVER = {"": "", '"': "!", "'": "'"}
"""The character that cannot be escaped within that quote: names that contain it are not offered there."""

_LONGEST = 60  # Characters of a description.


def answer(argv: Sequence[str], verbs: Mapping[str, str]) -> int:
    """Print the candidates for a shell and the words that it passes; return 0, without any message."""
    shell, rest = argv[0], list(argv[1:])
    words, quote = _of_line(rest[0]) if shell == "bash" else (rest, "")
    *before, last = words or [""]
    conf, recipes = ([*([Path(name)] if Path(name).is_dir() else []), shipped(name)] for name in ("conf", "recipes"))
    completer = Completer(vocabulary.read(verbs), conf, recipes)
    found = dict(reversed(completer.complete(before, last)))
    if shell == "bash":
        replaced = rest[1].replace("\\", "").lstrip("'\"")
        kept = len(last) - len(replaced) if last.endswith(replaced) else 0
        words = [word for word in reversed(found) if not (_NEVER[quote] and _NEVER[quote] in word[kept:])]
        escaped = {letter: f"\\{letter}" for letter in _SPECIAL[quote]}
        lines = {word: "".join(escaped.get(letter, letter) for letter in word[kept:]) for word in words}
    else:
        lines = {word: _with_meaning(word, found[word]) for word in reversed(found)}
    # A name with a control character would act on the terminal when it is offered.
    text = "".join(f"{line}\n" for word, line in lines.items() if word.isprintable())
    if sys.stdout is not None:
        sys.stdout.write(text)
    return 0


def _with_meaning(word: str, text: str) -> str:
    short = " ".join(text.split())
    return f"{word}\t{short if len(short) <= _LONGEST else f'{short[: _LONGEST - 3]}...'}"


def _of_line(line: str) -> tuple[list[str], str]:
    """The words of bash's line after the command, unquoted, and the quote that is open at its end."""
    words, quote, begun, escaped = [""], "", False, False
    for letter in line:
        if escaped or (quote == "'" and letter != "'"):
            words[-1] += letter
            escaped = False
        elif letter == "\\":
            escaped = True
        elif letter == quote:
            quote = ""
        elif not quote and letter in "'\"":
            quote = letter
        elif not quote and letter in " \t\n":
            words += [""] if begun else []
            begun = False
            continue
        else:
            words[-1] += letter
        begun = True
    return words[1:], quote


type Candidate = tuple[str, str]

_TOP = {"--help": "verbs, groups and their options", "--version": "the version"}
_WITH_A_LAYOUT = ("run", "check", "show", "prepare")  # Verbs that take ``plan=best``.
_NEWEST = 200  # Runs that are offered, the newest first.


@dataclass(frozen=True, slots=True)
class Completer:
    """Finds the candidates for the last word of a command line, in a folder."""

    vocabulary: JsonObject  # Verbs, options, groups and keys (``launcher.cli.completion.vocabulary``).
    conf: Sequence[Path]  # The folders of configuration, the user's first.
    recipes: Sequence[Path]  # The folders of recipes, the user's first.

    def complete(self, words: Sequence[str], last: str) -> list[Candidate]:
        """Return the candidates after ``words`` that begin with ``last``, which may be empty."""
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
        for name, about in self.vocabulary["keys"].items():
            if last and name.rpartition(".")[2].startswith(last):
                yield f"{name}=", about["help"]

    def _groups(self) -> Iterator[Candidate]:
        for group, text in self.vocabulary["groups"].items():
            if self._options(group) != ["default"]:
                yield f"{group}=", text
            yield f"{group}.", text
        yield "recipe=", "a shared run; your own overrides take precedence"

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
    names = {name for folder in folders for name in _names(folder)}
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml") and not name.startswith("_"))


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir() if not path.name.startswith("-")]
    except OSError:
        return []


def _records(folder: Path, begun: str) -> list[str]:
    """Names with this beginning of the runs and sweeps in a folder, newest first, then of groups: ``group/``."""
    names = sorted(name for name in _names(folder) if name.startswith(begun))
    found = {name: written for name in names if (written := _written(f"{folder}/{name}"))}
    newest = sorted(found, key=lambda name: (found[name], name), reverse=True)[:_NEWEST]
    if _written(str(folder)):  # Folders inside a run or a sweep are not groups.
        return newest
    return [*newest, *(f"{name}/" for name in names if name not in found and _is_group(folder / name))]


def _is_group(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.is_symlink():  # Links may form a cycle.
        return False
    return any(_written(f"{folder}/{each}") or _is_group(folder / each) for each in _names(folder))


def _written(folder: str) -> int:
    """The time at which a run or sweep was recorded in a folder; 0 if there is none."""
    for record in ("spec.json", "sweep.json"):
        with contextlib.suppress(OSError):  # Of ten thousand runs a path object each would take half a second.
            return os.stat(f"{folder}/{record}").st_mtime_ns  # noqa: PTH116
    return 0


def _remembered(path: Path) -> list[str]:
    lines = files.last_lines(path)[-_NEWEST:]
    known = (run.name for run in map(Path, reversed(lines)) if (run / "spec.json").is_file())
    return list(dict.fromkeys(name for name in known if not name.startswith("-")))


def _files(begun: str) -> Iterator[Candidate]:
    """Files and folders; ``~`` is expanded, since a shell would not expand it after ``=``."""
    path = f"{files.expanded(begun)}{'/' if begun.endswith('/') else ''}" if begun.startswith("~") else begun
    folder, slash, name = path.rpartition("/")
    for each in sorted(_names(Path(f"{folder}{slash}" or "."))):
        if each.startswith(name) and (name.startswith(".") or not each.startswith(".")):
            whole = f"{folder}{slash}{each}"
            yield (f"{whole}/" if Path(whole).is_dir() else whole), ""
