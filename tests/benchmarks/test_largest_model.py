"""The largest model whose states fit a card, from the memory model's own formulas."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.largest_model import CARD_BYTES, FIGURE, GPUS, bytes_per_parameter, draw, largest
from benchmarks.reporting import RESULTS


def test_the_states_under_ddp_are_16_bytes_a_parameter_on_every_rank() -> None:
    assert {bytes_per_parameter("ddp", gpus) for gpus in GPUS} == {16}
    assert largest()["ddp"] == [CARD_BYTES // 16] * len(GPUS) == [5_000_000_000] * len(GPUS)


def test_the_largest_model_under_fsdp_grows_linearly_with_the_gpus() -> None:
    sizes = largest()["fsdp"]
    assert sizes[0] == largest()["ddp"][0]
    assert sizes == [gpus * sizes[0] for gpus in GPUS]
    assert sizes[-1] == 5_120_000_000_000


def test_the_kept_figures_are_what_the_formulas_give_now() -> None:
    kept = json.loads((RESULTS / "largest_model.json").read_text())
    assert kept["figures"] == {"card_bytes": CARD_BYTES, "gpus": list(GPUS), "parameters": largest()}
    assert kept["versions"]["git"]["commit"]
    assert ElementTree.parse(FIGURE).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_figure_has_a_curve_for_each(tmp_path: Path) -> None:
    draw(largest(), tmp_path / "largest.png")
    assert (tmp_path / "largest.png").read_bytes().startswith(b"\x89PNG")
