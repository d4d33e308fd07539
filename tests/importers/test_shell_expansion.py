"""Words as bash makes them: one process of bash is asked what each snippet hands to ``run``."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from launcher.importers.megatron.shell import marks
from launcher.importers.megatron.shell.machine import follow, values_in

SNIPPETS = (Path(__file__).parent / "files" / "snippets_of_bash.txt").read_text().strip("\n").split("\n%%\n")
_CALL, _SNIPPET = "(end of call)", "(end of snippet)"


@cache
def answers_of_bash() -> list[list[tuple[str, ...]]]:
    """The words of each call of ``run``; every snippet has a subshell of its own."""
    define = f"run() {{ for word in \"$@\"; do printf '%s\\0' \"$word\"; done; printf '{_CALL}'; }}\n"
    script = define + "".join(f"(\n{snippet}\n)\nprintf '{_SNIPPET}'\n" for snippet in SNIPPETS)
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=False, env={"PATH": os.defpath})
    return [
        [tuple(call.split("\0")[:-1]) for call in part.split(_CALL)[:-1]] for part in done.stdout.split(_SNIPPET)[:-1]
    ]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to compare with")
@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_gives_the_words_that_bash_gives(number: int) -> None:
    assert len(SNIPPETS) == len(answers_of_bash()) > 60
    commands = follow(SNIPPETS[number], {}, lambda _words: False).commands
    assert [command.words[1:] for command in commands if command.words[0] == "run"] == answers_of_bash()[number]


@pytest.mark.parametrize(
    ("word", "shown", "asked"),
    [
        ("$X", "$X", ("X",)),
        ("a${X}b", "a$Xb", ("X",)),
        ("${X#*/}", "${X#*/}", ("X",)),
        ("$1", "$1", ("1",)),
        ("${X:?it is needed}", "$X", ("X",)),
        ("$((X * 2 + Y))", "$((X * 2 + Y))", ("X", "Y")),
        ("$(date +%s)", "$(date +%s)", ()),
        ("${X:-d}${Y-e}${Z:+f}", "de", ()),
        ("${X:-$Y}", "$Y", ("Y",)),
    ],
)
def test_what_has_no_value_is_shown_as_it_is_typed_and_says_whom_to_ask(
    word: str, shown: str, asked: tuple[str, ...]
) -> None:
    found = values_in(word, {})
    assert (marks.plain(found), marks.names(found)) == (shown, asked)


def test_values_that_are_given_are_put_in() -> None:
    assert values_in("$X/${Y:-d}/$((X + 1))", {"X": "3", "Y": "e"}) == "3/e/4"
