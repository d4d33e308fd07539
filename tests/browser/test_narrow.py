"""Every kind of page on a telephone: nothing is printed over something else, and nothing is cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from benchmarks.report import browser as chromium
from benchmarks.report import made
from launcher.views.page import many, of_run
from launcher.views.page import sweep as many_sweep
from tests.support.reported_runs import ran_out, reported

WIDTH = 390
"""CSS pixels of the window of a common telephone, held upright."""

LONG = "llama3_8b-fsdp-a-name-that-says-all-of-it"

OVER_EACH_OTHER = """() => [...document.querySelectorAll(".drawing svg")].flatMap((svg) => {
  const box = (text) => text.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].filter((text) => text.textContent && box(text).width
    && text.getAttribute("opacity") !== "0");
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 5;
  return texts.flatMap((a, place) => texts.slice(place + 1).filter((b) => meet(box(a), box(b)))
    .map((b) => `${a.textContent} | ${b.textContent}`));
})"""
"""Pairs of texts of a chart that share a place."""

CUT = """() => [...document.querySelectorAll(".drawing svg")].flatMap((svg) => {
  const room = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((text) => {
    const { left, right, width } = text.getBoundingClientRect();
    return text.textContent && width && (left < room.left - 1 || right > room.right + 1);
  }).map((text) => text.textContent);
})"""
"""Texts of a chart that do not lie within it."""

HIDDEN = """(width) => [...document.querySelectorAll("th, td, caption, h1, h2, h3, p, li, pre")].filter((part) => {
  const { left, right } = part.getBoundingClientRect();
  const scrolled = part.closest(".scrolled") && part.tagName !== "CAPTION";
  return part.scrollWidth > part.clientWidth + 1 || (!scrolled && (left < 0 || right > width));
}).map((part) => part.textContent)"""
"""Cells that do not show all that they hold, and texts beside the window."""


def of_a_run(folder: Path) -> str:
    return of_run(made.run(folder / LONG, "parallel=fsdp", steps=60))


def of_one_out_of_memory(folder: Path) -> str:
    run = reported(folder / "a", now="failed")
    ran_out(run)
    return of_run(run)


def of_several(folder: Path) -> str:
    made.run(folder / LONG, steps=60)
    made.run(folder / "b", "optimizer.lr=1e-3", steps=40, scale=1.2, now="running")
    return many.several([folder / LONG, folder / "b"])


def of_a_sweep(folder: Path) -> str:
    return many_sweep.swept(made.sweep(folder / "s", 30, steps=4))


@pytest.mark.parametrize(
    "made_of", [of_a_run, pytest.param(of_one_out_of_memory, marks=pytest.mark.thorough), of_several, of_a_sweep]
)
def test_a_page_is_readable_on_a_telephone(made_of: Callable[[Path], str], browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(made_of(tmp_path))
    with chromium.visit(browser, file, width=WIDTH, height=844) as found:
        page = found.page
        assert page.locator(".drawing svg text").count() > 10
        assert page.evaluate("document.documentElement.scrollWidth") == WIDTH
        assert page.evaluate(OVER_EACH_OTHER) == []
        assert page.evaluate(CUT) == []
        assert page.evaluate(HIDDEN, WIDTH) == []
