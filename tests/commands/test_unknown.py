"""A script A script without a named model: ``unknown`` is a verdict of its own wherever a verdict is."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import launcher
from launcher import cli
from launcher.base.errors import ConfigErrors
from launcher.job import torchrun
from launcher.preflight import evidence
from tests.support.helpers import composed_once
from tests.support.rehearsed_ranks import FOUND

SCRIPT = ("script=train.py", "cluster.gpus_per_node=1")
FIGURES = ("parameters", "static_bytes", "peak", "phases", "piles", "ranks", "host", "disk", "speed", "rehearsed")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, in which a job is started without torchrun."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(torchrun, "command", lambda spec, python, program, words: (python, "train.py", *words))
    return tmp_path


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    status = cli.main([*words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_a_check_says_unknown_and_has_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    status, document = asked(capsys, "check", *SCRIPT)
    assert (status, document["verdict"]) == (0, "unknown")
    assert [document[name] for name in FIGURES] == [None] * len(FIGURES)
    assert (document["errors"], document["fixes"], document["world"]["gpus"]) == ([], [], 1)
    assert cli.main(["check", *SCRIPT]) == 0
    assert capsys.readouterr().out.startswith(
        "UNKNOWN: launch does not know which model train.py builds, so nothing is refused\n"
    )


def test_no_figure_of_another_model_is_explained_or_drawn(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = asked(capsys, "check", *SCRIPT, "--explain", "activations", "--speed")
    assert (status, "explain" in document, document["speed"]) == (0, False, None)
    assert cli.main(["check", *SCRIPT, "--plot", "figure.html"]) == 0
    assert "figure.html is not written: the script builds its own model" in capsys.readouterr().err
    assert not (here / "figure.html").exists()


def test_the_api_says_neither_that_it_fits_nor_that_it_does_not() -> None:
    check = launcher.check(SCRIPT)
    assert (check.verdict, check.fits, check.peak) == ("unknown", None, None)
    assert "UNKNOWN" in check._repr_html_()
    with pytest.raises(ConfigErrors, match="the script builds its own model"):
        check.explain("activations")
    assert launcher.check([*SCRIPT, "model=tiny"]).fits is True


@pytest.mark.thorough
@pytest.mark.usefixtures("without_torch")
def test_points_and_sweeps_keep_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "points.jsonl").write_text(json.dumps({"id": 1, "overrides": SCRIPT}))
    assert cli.main(["check", "--points", "points.jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "unknown"
    status, document = asked(capsys, "check", "-m", *SCRIPT, "train.seed=1,2")
    assert (status, [point["verdict"] for point in document["points"]]) == (0, ["unknown", "unknown"])
    assert [point["reason"] for point in document["points"]] == [None, None]
    assert cli.main(["-m", *SCRIPT, "train.seed=1,2", "run.name=s"]) == 0
    capsys.readouterr()
    status, document = asked(capsys, "status", "s")
    assert [(row["verdict"], row["state"]) for row in document["runs"]] == [("unknown", "finished")] * 2


@pytest.mark.usefixtures("without_torch")
def test_a_run_is_started_and_its_record_and_page_say_unknown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", *SCRIPT, "run.name=a"]) == 0
    assert "launch: UNKNOWN: launch does not know which model train.py builds" in capsys.readouterr().err
    assert json.loads((here / "runs" / "a" / "plan.json").read_text())["verdict"] == "unknown"
    assert "verdict: unknown" in (here / "runs" / "a" / "run.lock.yaml").read_text()
    assert cli.main(["report", "a", "-o", "a.html"]) == 0
    page = (here / "a.html").read_text()
    assert "A script without a named model" in page
    assert "The check said" not in page


@pytest.mark.parametrize("words", [SCRIPT, (*SCRIPT, "model=tiny")])
def test_a_rehearsal_of_another_run_is_no_evidence_for_a_script(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings may be those of a run of the engine's worker that was rehearsed; the code is not."""
    place = evidence.place(composed_once("model=tiny", "cluster.gpus_per_node=1"))
    assert place == evidence.place(composed_once(*SCRIPT, "model=tiny"))
    place.mkdir(parents=True)
    (place / evidence.RESULT).write_text(json.dumps({"schema": 1, "evidence": asdict(FOUND)}))
    assert asked(capsys, "check", "model=tiny", "cluster.gpus_per_node=1")[1]["rehearsed"] is not None
    assert asked(capsys, "check", *words)[1]["rehearsed"] is None
    assert cli.main(["run", *words, "--rehearsed"]) == 2
    assert "your script has its own training loop" in " ".join(capsys.readouterr().err.split())
