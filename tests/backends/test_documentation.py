"""Generated documentation is what the code says."""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.memory import scoreboard
from launcher.config.catalog import Catalog
from launcher.planner import planning, question
from launcher.preflight import assess
from launcher.views.check import detail
from launcher.views.check.text import as_text
from launcher.views.plan import table
from tests.support.helpers import ACCEPT, CPU_HOST, ROOT, ask, make_spec
from tests.support.precision_table import precision_table

README, ENGINES = ROOT / "README.md", ROOT / "docs" / "engines.md"
PLANNING = ROOT / "docs" / "planning.md"


def test_the_precision_table_is_what_the_backends_say() -> None:
    page, table = ENGINES.read_text(), precision_table(make_spec("model=tiny"))
    before, begin, rest = page.partition("<!-- precision -->\n")
    shown, end, after = rest.partition("<!-- end of precision -->")
    assert end
    if os.environ.get(ACCEPT):
        ENGINES.write_text(f"{before}{begin}{table}{end}{after}")
    else:
        assert shown == table


def printed(verb: str, words: str) -> str:
    """What ``launch check`` or ``launch plan`` prints on 80 columns."""
    typed = words.split()
    if verb == "plan":
        found = planning.plan(question.ask(typed, facts=CPU_HOST, catalog=Catalog(folder=ROOT)))
        return table.text(replace(found, seconds=1.0), width=80)
    return checked(typed)


def checked(typed: list[str]) -> str:
    found = ask(*(word for word in typed if word != "--speed"))
    assert found.spec is not None
    judged = assess.assess(found.spec, earlier=found.errors)
    return detail.speed_text(judged, width=80) if "--speed" in typed else as_text(judged, width=80)


def excerpt(text: str, shown: str) -> str:
    """The part of a text that a document shows: its first paragraphs and, behind a line ``...``, its last ones.

    The first paragraphs may end within the last of them, with any of its lines.
    """
    paragraphs, (head, dots, tail) = text.split("\n\n"), shown.partition("\n...\n")
    *whole, last = paragraphs[: head.count("\n\n") + 1]
    lines, end = last.splitlines(), head.splitlines()[-1]
    kept = lines[: len(lines) - lines[::-1].index(end)] if end in lines else lines
    begin = "\n\n".join([*whole, "\n".join(kept)])
    return begin + dots + "\n\n".join(paragraphs[-tail.count("\n\n") - 1 :]) if dots else begin


@pytest.mark.parametrize(("document", "count"), [(README, 1), (PLANNING, 1)], ids=["readme", "planning"])
def test_a_document_shows_what_its_commands_print(document: Path, count: int) -> None:
    """Predictions change as the model does: ``LAUNCH_ACCEPT_GOLDEN=1`` writes the new ones."""
    blocks = re.findall(
        r"^    \$ launch (?P<verb>check|plan) (?P<words>.+)\n\n(?P<said>(?:(?:    .*)?\n)+)",
        document.read_text(),
        re.MULTILINE,
    )
    assert len(blocks) == count
    for verb, words, said in blocks:
        shown = textwrap.dedent(said).strip("\n")
        now = excerpt(printed(verb, words), shown)
        if os.environ.get(ACCEPT):
            written = document.read_text().replace(textwrap.indent(shown, "    "), textwrap.indent(now, "    "))
            document.write_text(written)
        elif now != shown:
            pytest.fail(f"$ launch {verb} {words}\n--- {document.name} says\n{shown}\n--- now\n{now}", pytrace=False)


def test_the_readme_shows_the_scoreboard_of_the_docs() -> None:
    shown = scoreboard.marked(README.read_text())
    assert shown == scoreboard.marked(scoreboard.DOCUMENT.read_text())
    assert shown.count("\n") > 3
    assert scoreboard.replaced(README.read_text(), shown) == README.read_text()
