"""The table of a page in a browser: by mouse and by keyboard, with words as settings are typed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from benchmarks.report import browser as chromium
from launcher.charts import table
from launcher.charts.html import tag
from launcher.charts.page import Section, page
from launcher.charts.table import Column, Row

COLUMNS = [
    Column(key="state", title="state"),
    Column(key="optimizer.lr", title="optimizer.lr"),
    Column(key="loss", title="loss", form=".4f", best="least"),
    Column(key="steps", title="steps", form=","),
]
ROWS = [
    Row(name="a", cells=["finished", "1e-3", 2.51234, 1000], line="launch optimizer.lr=1e-3", note="finished"),
    Row(name="b", cells=["failed", "1e-4", None, 20], note="failed: no such node"),
    Row(name="c", cells=["finished", "3e-4", 2.4, 12000], line="launch optimizer.lr=3e-4"),
    Row(name="d", cells=["running", "auto", 10.0, None], line="launch optimizer.lr=auto"),
]

FILTERS = {
    "loss<3": "ac",
    "loss<3 steps>=12000": "c",
    "lr=0.001": "a",
    "optimizer.lr>1e-4 state=FINISHED": "ac",
    "state!=finished": "bd",
    "loss=-": "b",
    "Running": "d",
    "auto": "d",
    "loss<": "abcd",
}
"""Words, and the rows that they leave."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parts = [tag("p", "before"), table.table("rows", "Runs of a test", "run", COLUMNS, ROWS)]
    section = Section(identity="one", title="One", parts=parts)
    path = tmp_path_factory.mktemp("table") / "page.html"
    path.write_text(page("A table", tag("p"), [section], parts=table.PARTS))
    return path


@pytest.fixture
def opened(browser: Browser, file: Path) -> Iterator[Page]:
    with chromium.visit(browser, file) as found:
        yield found.page
        assert (found.asked, found.said) == ([], [])


def shown(page: Page) -> str:
    """The names of the visible rows, in their order."""
    names = page.locator("#rows tbody tr:visible").evaluate_all("rows => rows.map((row) => row.dataset.name)")
    return "".join(names)


def test_a_column_sorts_up_and_then_down_numbers_by_size_and_what_is_unknown_last(opened: Page) -> None:
    for title, up, down in (("loss", "cadb", "dacb"), ("steps", "bacd", "cabd"), ("optimizer.lr", "bcad", "dacb")):
        head = opened.get_by_role("button", name=title, exact=True)
        head.click()
        assert (shown(opened), head.locator("..").get_attribute("aria-sort")) == (up, "ascending")
        head.press("Enter")
        assert (shown(opened), head.locator("..").get_attribute("aria-sort")) == (down, "descending")
    assert opened.locator("th[aria-sort=none]").count() == len(COLUMNS)


def test_a_filter_is_typed_as_a_setting_is(opened: Page) -> None:
    found = {}
    for words in FILTERS:
        opened.get_by_label("filter").fill(words)
        found[words] = shown(opened)
        count = opened.locator("output").text_content()
        assert count == ("4 rows" if len(found[words]) == 4 else f"{len(found[words])} of 4 rows")
    assert found == FILTERS


def test_a_column_that_is_not_there_is_named(opened: Page) -> None:
    opened.get_by_label("filter").fill("los<3")
    assert opened.locator("output").text_content() == "4 rows; no column is called los"


def test_the_keyboard_reaches_the_filter_the_heads_and_the_rows_in_this_order(opened: Page) -> None:
    opened.get_by_label("filter").focus()
    seen = []
    for _ in range(len(COLUMNS) + 4):
        opened.keyboard.press("Tab")
        seen.append(opened.evaluate("document.activeElement.textContent || document.activeElement.className"))
    assert seen[1:] == ["run", *(column.title for column in COLUMNS), "a", seen[-1]], "one row is on the way of Tab"
    opened.locator("tbody button", has_text="a").first.focus()
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("End")
    opened.keyboard.press("ArrowUp")
    opened.keyboard.press("Enter")
    assert opened.locator("tr[aria-selected=true]").get_attribute("data-name") == "c"
    assert opened.locator(".chosen pre").text_content() == "launch optimizer.lr=3e-4"


def test_a_chosen_row_shows_its_line_and_its_note(opened: Page) -> None:
    opened.get_by_text("1e-4").click()
    assert opened.locator(".chosen .note").text_content() == "failed: no such node"
    assert not opened.locator(".chosen pre").is_visible(), "it brings no line"
    opened.get_by_role("button", name="a", exact=True).click()
    assert opened.locator(".chosen pre").text_content() == "launch optimizer.lr=1e-3"
    opened.get_by_role("button", name="copy").click()
    assert opened.evaluate("getSelection().toString()") == "launch optimizer.lr=1e-3"
    opened.get_by_role("button", name="a", exact=True).click()
    opened.evaluate("getSelection().removeAllRanges()")
    opened.get_by_role("button", name="a", exact=True).click()
    assert not opened.locator(".chosen").is_visible(), "a second click puts it away"


def test_the_best_of_a_column_stands_out_without_colour_and_is_not_sorted_as_text(opened: Page) -> None:
    assert opened.locator("strong").all_text_contents() == ["2.4000"]
    after = "getComputedStyle(document.querySelector('#rows strong'), '::after').content"
    assert opened.evaluate(after) == '" \N{ASTERISK OPERATOR}" / " best"'


def test_without_scripts_every_row_is_there_and_in_print_the_controls_are_not(browser: Browser, file: Path) -> None:
    with chromium.visit(browser, file, java_script_enabled=False) as found:
        assert found.page.locator("tbody tr").count() == len(ROWS)
        assert found.page.locator("tbody tr").last.is_visible()
    with chromium.visit(browser, file) as found:
        found.page.emulate_media(media="print")
        assert not found.page.get_by_label("filter").is_visible()
        assert shown(found.page) == "abcd"
        assert len(found.page.pdf()) > 5000
        assert (found.asked, found.said) == ([], [])
