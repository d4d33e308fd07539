"""Generated documentation is what the code says."""

from __future__ import annotations

import re
import textwrap

from benchmarks.memory import scoreboard
from launcher.backends._precision_table import precision_table
from launcher.preflight import assess
from launcher.preflight.report import as_text, errors_as_text
from tests.support.helpers import ROOT, ask, assert_golden, make_spec

README = ROOT / "README.md"


def test_the_precision_table_is_what_the_backends_say() -> None:
    assert_golden("../../docs/precision.md", precision_table(make_spec("model=tiny")))


def test_the_readme_shows_what_its_commands_print() -> None:
    blocks = re.findall(
        r"^    \$ launch check (?P<words>.+)\n\n(?P<said>(?:(?:    .*)?\n)+)", README.read_text(), re.MULTILINE
    )
    assert len(blocks) == 2
    for words, said in blocks:
        found = ask(*words.split())
        assert found.spec is not None
        text = as_text(assess.assess(found.spec, earlier=found.errors), width=80)
        shown = textwrap.dedent(said).strip("\n")
        assert text.startswith(shown) or shown == errors_as_text(assess.assess(found.spec, earlier=found.errors).errors)


def test_the_readme_shows_the_scoreboard_of_the_docs() -> None:
    shown = scoreboard.marked(README.read_text())
    assert shown == scoreboard.marked(scoreboard.DOCUMENT.read_text())
    assert shown.count("\n") > 3
    assert scoreboard.replaced(README.read_text(), shown) == README.read_text()
