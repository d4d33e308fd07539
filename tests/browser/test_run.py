"""The page of one run, and the figure of a check, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks.report import browser as chromium
from benchmarks.report import made
from launcher.views.page import of_run
from tests.support.slurm_runs import launch


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("run")
    run = made.run(folder / "<b>tiny", "parallel=fsdp", steps=60)
    found = {"run": folder / "run.html", "check": folder / "check.html"}
    found["run"].write_text(of_run(run))
    words = ("model=7b", "parallel=fsdp", "hardware=h100_80g", "cluster.gpus_per_node=8", "--no-native")
    said = launch("check", *words, "--plot", str(found["check"]))
    assert said.status in {0, 3}, said.err
    return found


@pytest.fixture(params=["run", "check"])
def opened(browser: Browser, pages: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Page]:
    with chromium.visit(browser, pages[request.param]) as found:
        yield found.page
        assert (found.asked, found.said) == ([], [])


def test_pointing_at_a_pile_shows_its_formula_and_its_source(opened: Page) -> None:
    pile = opened.locator("g.mark-rect path[aria-label*=parameters]").first
    pile.scroll_into_view_if_needed()
    pile.hover()
    shown = opened.locator("#vg-tooltip-element")
    expect(shown).to_contain_text("formula")
    expect(shown).to_contain_text("source")
    expect(shown).to_contain_text("parameters")


def test_a_page_prints_in_light_colours_without_its_controls(browser: Browser, pages: dict[str, Path]) -> None:
    with chromium.visit(browser, pages["run"], scheme="dark") as found:
        assert found.page.get_by_label("look").is_visible()
        found.page.emulate_media(media="print")
        assert not found.page.get_by_label("look").is_visible()
        assert found.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert found.page.pdf().startswith(b"%PDF")
        assert (found.page.locator("h1 b").count(), found.asked, found.said) == (0, [], [])


def test_the_keyboard_switches_the_look_and_opens_what_is_folded(browser: Browser, pages: dict[str, Path]) -> None:
    with chromium.visit(browser, pages["run"]) as found:
        back = "getComputedStyle(document.body).backgroundColor"
        light = found.page.evaluate(back)
        found.page.get_by_label("look").focus()
        found.page.keyboard.press("d")  # The choice that begins with it.
        chromium.until(found.page, f"(light) => {back} !== light", light)
        folded = found.page.locator("details:has(> summary:text-is('the numbers'))").first
        folded.locator("summary").focus()
        found.page.keyboard.press("Enter")
        expect(folded).to_have_attribute("open", "")
        assert (found.asked, found.said) == ([], [])
