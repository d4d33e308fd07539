"""The figure of a run: real files, and numbers that are the estimate's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from launcher.base.units import gib
from launcher.charts import library
from launcher.charts.page import Chart
from launcher.cli import main
from launcher.estimate.memory.breakdown import Breakdown
from launcher.estimate.memory.result import MemoryEstimate
from launcher.estimate.memory.terms import OUTSIDE_PILES
from launcher.preflight import assess
from launcher.preflight.assess import Assessment
from launcher.views.check import piles, plot
from launcher.views.check.text import heading
from tests.support.helpers import make_spec
from tests.support.rule_cases import NODE

RUNS = {
    "fsdp": (*NODE, "model=llama3_8b", "parallel=fsdp"),
    "stages": (*NODE, "model=7b", "parallel=3d", "cluster.nodes=4", "train.global_batch_size=16"),
    "tight": (*NODE, "model=13b", "parallel=3d", "cluster.nodes=4", "train.global_batch_size=16"),
    "ranks_of_a_cpu": ("model=tiny", "parallel=fsdp"),
}


def _drawn(chart: Chart) -> list[dict[str, object]]:
    """The pieces of a chart of bars."""
    values: list[dict[str, object]] = chart.spec["layer"][0]["data"]["values"]
    return values


def _written(chart: Chart) -> list[str]:
    """The texts of a chart's other layers."""
    rows = (layer.get("data", {}).get("values", ()) for layer in chart.spec["layer"][1:])
    return [str(row["said"]) for values in rows for row in values if "said" in row]


class _Tables(HTMLParser):
    """The cells of every table of a page, by the table's id."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._rows = self.tables.setdefault(str(dict(attrs)["id"]), [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._rows[-1][-1] += data


def _judged(name: str) -> tuple[Assessment, MemoryEstimate, Breakdown]:
    assessment = assess.assess(make_spec(*RUNS[name]))
    assert assessment.estimate is not None, assessment.errors
    return assessment, assessment.estimate, assess.broken_down(assessment.spec, assessment.estimate)


@pytest.mark.parametrize("name", RUNS)
def test_the_columns_are_the_estimates_phases_and_ranks(name: str) -> None:
    _, estimate, columns = _judged(name)
    assert {column.phase: column.allocated_bytes for column in columns.phases} == estimate.phases
    assert [column.stage for column in columns.stages] == [rank.stage for rank in estimate.ranks]
    for column, rank in zip(columns.stages, estimate.ranks, strict=True):
        outside = sum(column.piles.get(pile, 0) for pile in OUTSIDE_PILES)
        assert column.allocated_bytes == rank.allocated_bytes
        assert column.device_bytes - outside == rank.reserved_bytes


@pytest.mark.parametrize("name", RUNS)
def test_the_column_of_the_peak_holds_the_estimates_piles(name: str) -> None:
    _, estimate, columns = _judged(name)
    piles = {pile.pile: pile.bytes for pile in estimate.piles}
    assert [column.piles for column in columns.phases if column.phase == estimate.peak.phase] == [piles]
    assert columns.stages[estimate.peak.stage].piles == piles


@pytest.mark.parametrize("name", RUNS)
def test_a_png_is_a_picture_with_many_colours(name: str, tmp_path: Path) -> None:
    from PIL import Image

    assessment, _, columns = _judged(name)
    plot.write(tmp_path / "run.png", assessment, columns)
    with Image.open(tmp_path / "run.png") as picture:
        assert picture.format == "PNG"
        assert picture.width >= 1200
        colours = picture.convert("RGB").getcolors(picture.width * picture.height)
    assert colours is not None
    seen = {"#{:02x}{:02x}{:02x}".format(*colour) for _, colour in colours if isinstance(colour, tuple)}
    drawn = {piles.COLOURS[pile] for pile in ("parameters", "optimizer states", "activations")}
    assert drawn <= seen


@pytest.mark.parametrize("name", RUNS)
def test_the_bars_of_a_phase_are_its_piles_with_their_formulas_and_sources(name: str) -> None:
    _, estimate, columns = _judged(name)
    pieces = _drawn(plot.charts(*_judged(name)[::2])[0])
    peak = [piece for piece in pieces if str(piece["row"]).startswith(estimate.peak.phase)]
    told = {str(piece["name"]).replace(" ", "_"): (piece["size"], piece["formula"]) for piece in peak}
    found = {pile.pile: (gib(pile.bytes), pile.formula) for pile in estimate.piles if pile.bytes}
    assert set(told) == set(found)
    assert {pile: told[pile] for pile in told if pile != "fragmentation"} == {
        pile: found[pile] for pile in found if pile != "fragmentation"
    }
    assert all(piece["source"] for piece in pieces)
    ends = {row["row"]: row["_to"] for row in pieces}
    unit, _ = piles.unit_for(1.13 * max(column.device_bytes for column in columns.phases))
    assert list(ends.values()) == pytest.approx([column.device_bytes / unit for column in columns.phases])


def test_the_figure_says_what_of_the_fragmentation_is_given_back() -> None:
    assessment, _, columns = _judged("fsdp")
    assert (
        "Fragmentation above it is cached and released when memory runs short."
        in plot.charts(assessment, columns)[0].note
    )


def test_an_svg_is_one_drawing_that_loads_nothing_and_is_the_same_each_time(tmp_path: Path) -> None:
    assessment, _, columns = _judged("stages")
    for name in ("first.svg", "second.svg"):
        plot.write(tmp_path / name, assessment, columns)
    text = (tmp_path / "first.svg").read_text()
    assert text == (tmp_path / "second.svg").read_text()
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    links = [value for item in root.iter() for key, value in item.attrib.items() if key.endswith("href")]
    links += re.findall(r"url\(([^)]*)\)", text)
    assert links, "the parts are clipped by paths of the same file"
    assert all(link.startswith("#") for link in links)


@pytest.mark.parametrize("name", RUNS)
def test_the_numbers_of_the_page_are_the_estimates(name: str, tmp_path: Path) -> None:
    assessment, estimate, columns = _judged(name)
    plot.write(tmp_path / "run.html", assessment, columns)
    page = _Tables()
    page.feed((tmp_path / "run.html").read_text())
    shown = {row[0]: row[1:] for row in page.tables["phases"]}
    assert shown[""] == [phase.replace("_", " ") for phase in estimate.phases]
    assert shown["allocated"] == [gib(size) for size in estimate.phases.values()]
    place = list(estimate.phases).index(estimate.peak.phase)
    assert estimate.piles
    for pile in estimate.piles:
        assert shown[pile.pile.replace("_", " ")][place] == gib(pile.bytes)
    assert shown["whole process"][place] == gib(estimate.peak.device_bytes)
    formulas = {row[0].replace(" ", "_"): row[1:] for row in page.tables["formulas"][1:]}
    assert formulas == {pile.pile: [gib(pile.bytes), pile.formula, pile.source] for pile in estimate.piles}
    peaks = [row[1:] for row in page.tables.get("stages", []) if row[0] == "allocated"]
    stages = [[gib(rank.allocated_bytes) for rank in estimate.ranks]]
    assert peaks == (stages if len(estimate.ranks) > 1 else [])


def test_the_page_says_the_run_and_the_verdict(tmp_path: Path) -> None:
    assessment, _, columns = _judged("fsdp")
    plot.write(tmp_path / "run.html", assessment, columns)
    text = (tmp_path / "run.html").read_text()
    assert all(line in text for line in heading(assessment))
    assert "default-src &#x27;none&#x27;" in text


def test_a_figure_of_a_small_run_on_a_large_host_names_the_capacity_off_its_axis() -> None:
    assessment, _, columns = _judged("ranks_of_a_cpu")
    chart = plot.charts(assessment, columns)[0]
    capacity = gib(assessment.verdict.capacity_bytes or 0)
    assert f"The capacity, {capacity}, is far to the right of this axis." in chart.note
    assert not [said for said in _written(chart) if said.startswith("capacity")]
    assert chart.spec["layer"][0]["encoding"]["x"]["title"] == "memory of one rank, MiB"


def test_the_capacity_is_a_line_in_every_chart_of_memory() -> None:
    assessment, _, columns = _judged("tight")
    charts = plot.charts(assessment, columns)[:2]
    assert [chart.title.split(",")[0] for chart in charts] == ["Memory by phase", "Memory by pipeline stage"]
    for chart in charts:
        capacity = assessment.verdict.capacity_bytes or 0
        assert f"capacity {gib(capacity)}" in _written(chart)
        rules = [layer["encoding"]["x"] for layer in chart.spec["layer"] if layer["mark"]["type"] == "rule"]
        assert {"datum": capacity / 2**30, "type": "quantitative"} in rules


def test_check_plot_prints_the_answer_and_writes_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "run.svg"
    assert main(["check", "--json", *RUNS["fsdp"], "--plot", str(target)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"] in ("fits", "tight")
    assert err == f"launch: the figure is in {target}\n"
    assert target.read_text().startswith("<svg")


def test_a_run_that_does_not_fit_is_drawn_and_an_invalid_one_is_not(tmp_path: Path) -> None:
    large = [*NODE, "model=70b", "parallel=ddp", "--plot", str(tmp_path / "large.png")]
    assert main(["check", *large]) == 3
    assert (tmp_path / "large.png").exists()
    assert main(["check", *NODE, "parallel=tp", "parallel.tensor=3", "--plot", str(tmp_path / "wrong.png")]) == 2
    assert not (tmp_path / "wrong.png").exists()


def test_an_unknown_suffix_is_refused_with_a_name_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "model=tiny", "--plot", "run.jpeg"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: --plot=run.jpeg: the file name must end in .png, .svg or .html\n  try  --plot run.png\n"


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(library, "find_spec", lambda _: None)
    assert main(["check", "model=tiny", "--plot", "run.png"]) == 2
    assert capsys.readouterr().err == (
        "error: --plot=run.png: a page or a figure needs vl-convert-python, which is not\n"
        f"  installed for this Python\n  try  {sys.executable} -m pip install 'llm-launch[report]'\n"
    )


def test_a_path_that_cannot_be_written_is_status_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "none" / "run.png"
    assert main(["check", "model=tiny", "--plot", str(target)]) == 4
    assert capsys.readouterr().err == f"launch: --plot: {target} cannot be written: No such file or directory\n"


def test_many_points_are_not_one_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--points", str(tmp_path / "points.jsonl"), "--plot", "run.png"]) == 2
    assert capsys.readouterr().err == (
        "error: --plot=run.png: a plot shows one run, but --points gives many: plot one\n  of them by its overrides\n"
    )


def test_check_without_a_figure_imports_no_library(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom launcher.cli import main\n"
        "main(['check', 'model=tiny'])\nsys.exit('imported' if 'vl_convert' in sys.modules else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
