from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re

import pytest

from launcher.charts import library, lines, page
from launcher.charts.html import Cell, Html, items, table, tag
from launcher.charts.page import Chart, Section

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'\u202e\x1b[2J"


class Elements(html.parser.HTMLParser):
    """The elements of a page, as a browser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.names and self.names[-1] == "script" and self.cdata_elem == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def hostile() -> str:
    rows = [{"step": 1, "loss": 2.0, "run": HOSTILE}, {"step": 2, "loss": float("nan"), "run": HOSTILE}]
    spec = lines.curves(rows, x="step", y="loss", title=HOSTILE, series="run")
    chart = Chart(
        title=HOSTILE,
        spec=spec,
        said=HOSTILE,
        note=HOSTILE,
        zoom="step",
        log=True,
        numbers=table([HOSTILE], [[HOSTILE]]),
    )
    section = Section(identity="one", title=HOSTILE, parts=[chart, HOSTILE, items([HOSTILE])])
    return page.page(HOSTILE, tag("p", HOSTILE), [section, section])


def test_no_text_becomes_markup_wherever_it_stands(hostile: str) -> None:
    seen = Elements(hostile)
    assert seen.names.count("script") == 4  # The library's, the page's own, and two blocks of data.
    assert "img" not in seen.names
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert "\u202e" not in hostile
    assert "\x1b" not in hostile


def test_a_page_allows_its_own_scripts_alone_and_no_connection(hostile: str) -> None:
    policy = next(
        value for name, value in Elements(hostile).attributes if name == "content" and "default-src" in (value or "")
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src" not in policy
    codes = [code for code in Elements(hostile).scripts if not code.startswith(("[", "{"))]
    hashes = {base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in codes}
    assert set(re.findall(r"'sha256-([^']+)'", policy)) == hashes
    assert len(hashes) == 2


def test_a_page_loads_nothing_and_is_far_below_six_megabytes(hostile: str) -> None:
    assert not [
        value
        for name, value in Elements(hostile).attributes
        if name in ("src", "href") and not (value or "").startswith("#")
    ]
    assert len(hostile.encode()) < 2_000_000


def test_a_chart_is_data_whose_numbers_are_those_that_json_has(hostile: str) -> None:
    charts = json.loads(next(code for code in Elements(hostile).scripts if code.startswith("[")))
    assert [(chart["id"], chart["zoom"], chart["log"]) for chart in charts] == [
        ("chart-0", "step", True),
        ("chart-1", "step", True),
    ]
    assert [row["loss"] for row in charts[0]["spec"]["data"]["values"]] == [2.0, None]
    assert charts[0]["spec"]["description"] == HOSTILE


def test_a_script_that_would_end_its_element_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "script", lambda: "'</SCRIPT>'")
    section = Section(identity="a", title="A", parts=[Chart(title="t", spec={}, said="nothing")])
    with pytest.raises(AssertionError, match="end its own element"):
        page.page("t", Html(""), [section])


def test_markup_stays_and_every_other_text_is_escaped() -> None:
    made = tag("p", tag("b", "<i>"), " & ", 3, class_='x"y', data_no=None, hidden=True)
    assert made == '<p class="x&quot;y" hidden><b>&lt;i&gt;</b> &amp; 3</p>'
    assert '<td class="wide">&lt;</td>' in table(["a", "b"], [["x", Cell("<", wide=True)]])
