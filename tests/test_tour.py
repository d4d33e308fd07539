"""docs/tour.md is typed into a shell, line by line, and prints what it says.

A block's line that starts with ``$`` is a command, one with ``>`` goes on with it; what follows is what it prints. A
line ``...`` stands for any lines, ``...`` inside of a line for any text: figures that this machine measures, and times.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.base.package import IMPORT_FOLDER
from tests.support import hostile, torchrun
from tests.support.helpers import needs

PAGE = (IMPORT_FOLDER / "docs" / "tour.md").read_text()


@dataclass(frozen=True, slots=True)
class Step:
    """A command and what it prints."""

    command: str
    printed: tuple[str, ...]


def steps(page: str) -> list[Step]:
    """The commands of the page's indented blocks, in order."""
    found: list[tuple[list[str], list[str]]] = []
    for line in page.splitlines():
        if not line.startswith("    ") and line.strip():
            continue
        text = line[4:]
        if text.startswith("$ "):
            found.append(([text[2:]], []))
        elif text.startswith("> ") and found and not found[-1][1]:
            found[-1][0].append(text[2:])
        elif found:
            found[-1][1].append(text)
    return [Step("\n".join(command), _stripped(printed)) for command, printed in found]


def _stripped(lines: list[str]) -> tuple[str, ...]:
    return tuple("\n".join(lines).strip("\n").splitlines())


def matches(printed: tuple[str, ...], text: str) -> bool:
    """True if a command's output is what the page says."""
    pattern = ""
    for line in printed:
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += r"[^\n]*".join(map(re.escape, line.rstrip().split("..."))) + r"[ ]*\n"
    return re.fullmatch(pattern, text.strip("\n") + "\n" if text.strip() else "") is not None


@pytest.mark.parametrize(
    ("printed", "text", "same"),
    [
        (("a", "...", "d"), "a\nb\nc\nd\n", True),
        (("a", "...", "d"), "a\nd\n", True),
        (("loss ... at 3",), "loss 2.25 at 3", True),
        (("a",), "a\nb", False),
        (("a", "..."), "b\n", False),
        ((), "", True),
        ((), "anything", False),
    ],
)
def test_three_points_stand_for_what_may_differ_and_nothing_else_may(
    printed: tuple[str, ...], text: str, *, same: bool
) -> None:
    assert matches(printed, text) is same


def test_every_line_of_the_tour_prints_what_the_page_says_under_a_torchrun_without_torch(tmp_path: Path) -> None:
    needs("torch", "the tour trains")
    todo = steps(PAGE)
    assert len(todo) > 15
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": str(torchrun.without_torch(tmp_path / "agent")),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    folder = tmp_path / "tour"
    folder.mkdir()
    imported = hostile.plant(folder)  # A working folder may hold a file of any name; none of ours imports it.
    forked = str(torchrun.without_torch(tmp_path / "forked", forked=True))
    status = 0
    for number, step in enumerate(todo):
        if (folder / "runs").exists():  # Ranks of the first run import beside that folder as a user's do.
            environment["PYTHONPATH"] = forked
        done = subprocess.run(
            ["bash", "-c", f"(exit {status}); {step.command}"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
            check=False,
        )
        status = done.returncode
        shown = "\n".join(step.printed)
        if not matches(step.printed, done.stdout):
            pytest.fail(f"$ {step.command}\n--- the page says\n{shown}\n--- it prints\n{done.stdout}", pytrace=False)
        asked = number + 1 < len(todo) and todo[number + 1].command == "echo $?"
        assert status == 0 or asked, (
            f"$ {step.command}\nends with {status}, and the page does not say so:\n{done.stdout}"
        )
    assert not imported.exists(), imported.read_text()
