"""Completion of the shells: ``launch __complete SHELL ...`` prints the candidates for the shell's script, a line each.

``launch completion SHELL`` prints that script, which asks at each Tab; an answer comes before a person notices. What
only parsers of the verbs and the schema know is kept in a file by ``vocabulary``; options of groups, recipes, runs and
files are looked up in the folders each time, by ``candidates``.

zsh and fish hand over the words behind ``launch``, the one at the cursor last. bash hands over the line up to the
cursor, because it splits words at ``=``, and the part of the last word that it will replace.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.base.package import shipped
from launcher.cli.completion import vocabulary
from launcher.cli.completion.candidates import Completer

_SPECIAL = {"": frozenset(" \t\"'\\$`&|;<>()*?[]{}!#~"), '"': frozenset('"\\$`'), "'": frozenset()}
"""Letters that bash wants a backslash before, by the quote that is open."""

_NEVER = {"": "", '"': "!", "'": "'"}
"""The letter that nothing takes its meaning from within that quote: a name with it is not offered there."""

_LONGEST = 60  # Characters of a description.


def answer(argv: Sequence[str], verbs: Mapping[str, str]) -> int:
    """Print the candidates for a shell's name and what it hands over; a shell at its prompt wants no message."""
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
    # A name with a control character would act on the terminal, where it is offered.
    text = "".join(f"{line}\n" for word, line in lines.items() if word.isprintable())
    if sys.stdout is not None:
        sys.stdout.write(text)
    return 0


def _with_meaning(word: str, text: str) -> str:
    short = " ".join(text.split())
    return f"{word}\t{short if len(short) <= _LONGEST else f'{short[: _LONGEST - 3]}...'}"


def _of_line(line: str) -> tuple[list[str], str]:
    """The words of bash's line behind the command, without their quotes, and the quote that is open at its end."""
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
