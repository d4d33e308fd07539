"""`launch report SWEEP` in a browser: a thousand points, their axes, and the table that they are tied to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks.report import browser as chromium
from benchmarks.report import made
from launcher.rundir import state
from launcher.views.page import sweep as many_sweep

POINTS = 1000
HOSTILE = "</script><img src=x onerror=window.hurt=1>\"'&"
SHOWN = "document.querySelectorAll('#points tbody tr:not([hidden])').length"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made.sweep(tmp_path_factory.mktemp("sweep") / "s", POINTS, steps=4)
    content = json.loads((folder / state.SWEEP).read_text())
    content["points"][3]["overrides"][0] = f"optimizer.lr={HOSTILE}"
    left_out = next(point for point in content["points"] if point["reason"])
    left_out["reason"] = HOSTILE
    (folder / state.SWEEP).write_text(json.dumps(content))
    path = folder.parent / "page.html"
    path.write_text(many_sweep.swept(folder))
    return path


@pytest.fixture
def opened(visited: Page) -> Page:
    """The page as it was first, which takes seconds to open."""
    page = visited
    if page.get_by_role("button", name="clear the ranges").is_enabled():
        page.get_by_role("button", name="clear the ranges").click()
    page.get_by_label("filter").fill("")
    page.mouse.move(1, 1)
    chromium.until(page, f"{SHOWN} === {POINTS}")
    return page


def left(page: Page) -> int:
    """Rows that are shown."""
    return page.locator("#points tbody tr:not([hidden])").count()


def drag(page: Page, axis: int, low: float, high: float) -> None:
    """Mark a part of an axis, in shares of its height from the top."""
    place = page.evaluate(
        """(axis) => {
          const view = views["chart-0"], box = document.querySelector("#chart-0 canvas").getBoundingClientRect();
          const [[left, top], inside] = [view.origin(), view.padding()];
          return [box.x + left + inside.left + view.scale("along")(axis), box.y + top + inside.top, view.height()];
        }""",
        axis,
    )
    x, y, height = place
    page.mouse.move(x, y + low * height)
    page.mouse.down()
    page.mouse.move(x, y + high * height, steps=5)
    page.mouse.up()


def test_a_thousand_points_are_there_and_the_page_is_quiet(browser: Browser, file: Path) -> None:
    with chromium.visit(browser, file) as found:
        assert left(found.page) == POINTS
        assert (found.asked, found.said) == ([], [])


def test_the_best_point_and_its_line_come_first_and_those_left_out_have_their_reasons(opened: Page) -> None:
    lead = opened.locator("header").text_content() or ""
    assert "1,000 points: 917 finished, 83 left out" in lead
    assert "Lowest loss (mean of the last tenth of the logged steps): 057" in lead
    assert (opened.locator("header pre").first.text_content() or "").startswith("launch model=tiny ")
    reasons = opened.locator("#left li").all_text_contents()
    assert "1: " + HOSTILE in reasons
    assert any(reason.endswith("GPU needs 32.77 GiB of 24.00 GiB") for reason in reasons)
    assert opened.locator("img").count() == 0
    curves = opened.locator("#curves")
    assert "The 12 points of the lowest loss, of 917 with one." in (curves.text_content() or "")
    assert curves.locator("input[data-series]").count() == 12


def test_marking_axes_keeps_the_points_that_cross_all_marks(opened: Page) -> None:
    drag(opened, 1, 0.0, 0.3)  # Of the batches 1, 2, 4, 8 the largest stands at the top.
    chromium.until(opened, f"{SHOWN} < 1000")
    batches = set(opened.locator("#points tbody tr:not([hidden]) td:nth-child(5)").all_text_contents())
    assert batches == {"8"}
    count = left(opened)
    drag(opened, 4, 0.7, 1.0)
    chromium.until(opened, f"(count) => {SHOWN} < count", count)
    kept = opened.locator("#points tbody tr:not([hidden])")
    assert kept.count() > 0
    assert "left out" not in kept.locator("td:nth-child(2)").all_text_contents(), "they have no loss"
    opened.get_by_role("button", name="clear the ranges").click()
    chromium.until(opened, f"{SHOWN} === 1000")
    assert opened.get_by_role("button", name="clear the ranges").is_disabled()


def test_what_the_filter_leaves_out_is_faint_among_the_lines_and_stays_so_in_the_dark(opened: Page) -> None:
    opened.get_by_label("filter").fill("lr=1e-3 micro_batch_size=4")
    shown = "views['chart-0'].data('points').filter((point) => point.shown).length"
    chromium.until(opened, f"{shown} < 1000")
    count = left(opened)
    assert opened.evaluate(shown) == count > 0
    opened.get_by_label("look").select_option("dark")
    chromium.until(opened, "views['chart-0'].background() !== '#ffffff'")
    chromium.until(opened, f"{shown} === {count}")
    assert left(opened) == count


def test_the_pointer_names_the_point_of_a_line(opened: Page) -> None:
    best = """() => {
      const view = views["chart-0"], box = document.querySelector("#chart-0 canvas").getBoundingClientRect();
      const point = view.data("points").find((each) => each.name === "057");
      const place = (axis) => [view.scale("along")(axis), view.scale(`s${axis}`)(point[`k${axis}`])];
      const [[x, y], [to, down]] = [place(4), place(5)];
      const [[left, top], inside] = [view.origin(), view.padding()];
      return [box.x + left + inside.left + (x + to) / 2, box.y + top + inside.top + (y + down) / 2];
    }"""
    x, y = opened.evaluate(best)
    opened.mouse.move(x - 1, y)
    opened.mouse.move(x, y)
    expect(opened.locator("#vg-tooltip-element")).to_contain_text("point057")
    assert "optimizer.lr1e-3" in (opened.locator("#vg-tooltip-element").text_content() or "")
