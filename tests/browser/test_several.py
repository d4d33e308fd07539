"""`launch report RUN RUN...` in a browser: curves over each other, the table, hostile names, 100,000 steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from benchmarks.report import browser as chromium
from benchmarks.report import made
from launcher.views.page import many

HOSTILE = "<img src=x onerror=window.hurt=1>\"'&{{hurt=1}}"
LONG = 100_000
MOST_BYTES = 6 * 10**6


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    made.run(folder / "a", steps=200)
    made.run(folder / "b", "optimizer.lr=1e-3", steps=100, scale=1.2, now="running")
    spec = json.loads((folder / "b" / "spec.json").read_text())
    spec["data"]["path"] = HOSTILE
    (folder / "b" / "spec.json").write_text(json.dumps(spec))
    made.run(folder / HOSTILE, "train.global_batch_size=16", steps=50, scale=0.8)
    lines = [json.loads(line) for line in (folder / "b" / "metrics.jsonl").read_text().splitlines()]
    lines[40]["loss"] = float("nan")
    (folder / "b" / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    path = folder / "page.html"
    path.write_text(many.several([folder / "a", folder / "b", folder / HOSTILE]))
    return path


@pytest.fixture
def opened(visited: Page) -> Page:
    """The page as it was first, which takes seconds to open."""
    page = visited
    for box in page.locator("input[data-series]").all():
        box.check()
    chromium.until(page, "document.querySelectorAll('#chart-0 g.mark-line path').length === 3")
    return page


def lines(page: Page, title: str) -> list[str]:
    """The colours of the lines of a chart."""
    paths = page.locator("figure", has_text=title).locator("g.mark-line path")
    return [path.get_attribute("stroke") or "" for path in paths.all()]


def test_curves_lie_over_each_other_and_a_box_takes_one_away_from_all_charts(opened: Page) -> None:
    before = lines(opened, "training loss by step")
    assert len(set(before)) == 3
    assert len(lines(opened, "training loss by tokens")) == 3, "the batches differ"
    opened.get_by_role("checkbox", name="b", exact=True).uncheck()
    chromium.until(opened, "document.querySelectorAll('#chart-0 g.mark-line path').length === 2")
    assert lines(opened, "training loss by step") == [before[0], before[2]], "the others keep their colours"
    chromium.until(opened, "document.querySelectorAll('#chart-1 g.mark-line path').length === 2")
    opened.get_by_role("button", name="none").click()
    opened.locator("#chart-0").get_by_text("Nothing is chosen.").wait_for()
    opened.get_by_role("button", name="all", exact=True).first.click()
    chromium.until(opened, "document.querySelectorAll('#chart-0 g.mark-line path').length === 3")


def test_dragging_over_a_curve_zooms_all_charts_of_the_same_axis_and_a_double_click_shows_all(opened: Page) -> None:
    place = opened.locator("#chart-0 svg.marks").bounding_box()
    assert place is not None
    ends = "(name) => views[name].scale('x').domain()"
    whole = opened.evaluate(ends, "chart-0")
    opened.mouse.move(place["x"] + 300, place["y"] + 120)
    opened.mouse.down()
    opened.mouse.move(place["x"] + 500, place["y"] + 120, steps=4)
    opened.mouse.up()
    chromium.until(opened, "(least) => views['chart-0'].scale('x').domain()[0] > least", whole[0])
    low, high = opened.evaluate(ends, "chart-0")
    assert whole[0] < low < high < whole[1]
    chromium.until(opened, "(low) => views['chart-2'].scale('x').domain()[0] === low", low)
    opened.locator("#chart-0 svg.marks").dblclick()
    chromium.until(opened, "(least) => views['chart-0'].scale('x').domain()[0] === least", whole[0])


def test_a_scale_becomes_logarithmic_and_the_pointer_shows_the_run_the_step_and_the_value(opened: Page) -> None:
    box = opened.locator("#chart-0").get_by_role("checkbox")
    for wanted in ("log", "linear"):
        box.press(" ")
        chromium.until(opened, "(wanted) => views['chart-0'].scale('y').type === wanted", wanted)
    place = opened.locator("#chart-0 svg.marks").bounding_box()
    assert place is not None
    opened.mouse.move(place["x"] + 400, place["y"] + 200)
    opened.mouse.move(place["x"] + 402, place["y"] + 200)
    shown = opened.locator("#vg-tooltip-element")
    shown.wait_for()
    assert {"run", "step", "training loss"} <= set(shown.locator(".key").all_text_contents())


def test_the_table_has_what_differs_and_what_came_out_and_hostile_names_are_only_text(opened: Page) -> None:
    table = opened.locator("#runs")
    heads = table.locator("thead button").all_text_contents()
    assert heads[:2] == ["run", "state"]
    assert {"optimizer.lr", "train.global_batch_size", "data.path", "loss", "GPUs"} <= set(heads)
    table.get_by_role("button", name="loss", exact=True).click()
    assert table.locator("tbody tr").first.get_attribute("data-name") == HOSTILE
    table.get_by_role("button", name=HOSTILE).click()
    assert table.locator(".chosen pre").text_content() == (
        "launch model=tiny cluster.gpus_per_node=2 hardware.device=cpu train.global_batch_size=16"
    )
    assert opened.locator("img").count() == 0
    assert HOSTILE in (opened.locator("h1").text_content() or "")


def test_the_look_follows_the_system_and_the_switch_and_print_is_light(browser: Browser, file: Path) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    with chromium.visit(browser, file, scheme="dark") as found:
        dark = found.page.evaluate(back)
        found.page.emulate_media(color_scheme="light")
        chromium.until(found.page, "(dark) => getComputedStyle(document.body).backgroundColor !== dark", dark)
        found.page.get_by_label("look").select_option("dark")
        chromium.until(found.page, "(dark) => getComputedStyle(document.body).backgroundColor === dark", dark)
        found.page.emulate_media(media="print")
        assert found.page.evaluate(back) == "rgb(255, 255, 255)"
        assert (found.asked, found.said) == ([], [])


def test_the_keyboard_goes_from_the_top_to_the_table_and_zooms_a_chart(opened: Page) -> None:
    opened.get_by_label("look").focus()
    seen = []
    for _ in range(6):
        opened.keyboard.press("Tab")
        seen.append(opened.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert seen[:3] == ["Curves", "Predicted and measured", "Settings and results"]
    whole = opened.evaluate("views['chart-0'].scale('x').domain()")
    opened.locator("#chart-0 .drawing").first.focus()
    opened.keyboard.press("+")
    chromium.until(opened, "(least) => views['chart-0'].scale('x').domain()[0] > least", whole[0])


@pytest.mark.thorough
def test_a_hundred_thousand_steps_are_thinned_and_said_to_be(browser: Browser, tmp_path: Path) -> None:
    made.run(tmp_path / "short", steps=1000)
    metrics = made.run(tmp_path / "long", steps=LONG) / "metrics.jsonl"
    lines = metrics.read_text().splitlines()
    lines[77_777] = json.dumps({**json.loads(lines[77_777]), "loss": 123.0})
    metrics.write_text("\n".join(lines))
    file = tmp_path / "page.html"
    file.write_text(many.several([tmp_path / "short", tmp_path / "long"]))
    assert file.stat().st_size < MOST_BYTES
    with chromium.visit(browser, file) as found:
        note = found.page.locator("#chart-0 .note").text_content() or ""
        assert "of 101,000 points: the minimum and maximum of each interval" in note
        assert found.page.evaluate("views['chart-0'].scale('y').domain()[1]") >= 123, "a spike of one step is seen"
        assert (found.asked, found.said) == ([], [])
