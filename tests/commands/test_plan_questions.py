"""The questions of ``launch plan`` beside the layouts, as they are typed."""

from __future__ import annotations

import json

import pytest

from launcher.base import machine
from launcher.cli import main
from tests.support.helpers import CPU_HOST
from tests.support.questions import WORDS, card

SMALL = (*WORDS, "parallel.tensor=1", "parallel.pipeline=1")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The answer without its line breaks."""
    return " ".join(capsys.readouterr().out.split())


def test_each_layout_has_its_time_and_money(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*SMALL, "cluster.gpus_per_node=2", "--tokens", "10B", "--days", "30", "--price", "2.5")
    assert main(["plan", *words]) == 0
    text = said(capsys)
    assert "10.00 B tokens in" in text
    assert "GPU-hours, cost" in text
    assert "train.tokens=10000000000 cluster.price_per_gpu_hour=2.5" in text.replace("\\ ", "")
    assert main(["plan", *words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    first = plan["layouts"][0]
    assert plan["days"] == 30
    assert first["in_time"] is True
    assert first["days"] == pytest.approx(first["speed"]["gpu_hours"] / 2 / 24)
    assert first["speed"]["price"] == pytest.approx(2.5 * first["speed"]["gpu_hours"])


def test_too_slow_is_status_three_and_names_the_smallest_cluster_that_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (*SMALL, "cluster.nodes=1", "cluster.gpus_per_node=1", "--tokens", "10B", "--days", "0.5")
    assert main(["plan", *words]) == 3
    text = said(capsys)
    assert "TOO SLOW: the fastest layout takes" in text
    assert "The smallest cluster that trains it within 0.5 days: 4 GPUs (4 nodes of 1)" in text
    assert main(["plan", *words, "--json"]) == 3
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["layouts"][0]["in_time"] is False
    assert plan["smallest"]["size"] == {"gpus": 4, "nodes": 4, "gpus_per_node": 1}


def test_the_smallest_cluster_is_told_with_its_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SMALL, card(16), "--smallest"]) == 0
    text = said(capsys)
    assert "The smallest cluster that trains it: 4 GPUs, cluster.nodes=1 cluster.gpus_per_node=4." in text
    assert "One step smaller, 2 GPUs: too small on a GPU by" in text
    assert "One step larger, 8 GPUs:" in text
    assert "launch the first:" in text
    assert main(["plan", *SMALL, card(16), "--smallest", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["smallest"]["size"]["gpus"] == 4
    assert plan["smallest"]["smaller"]["overrides"] is None
    assert plan["smallest"]["larger"]["tokens_per_second"] > 0
    assert main(["check", *SMALL, card(16), *plan["layouts"][0]["overrides"]]) == 0


def test_no_cluster_is_status_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SMALL, card(5), "cluster.nodes=2", "--smallest"]) == 3
    assert "None of the clusters tried trains it. The largest, " in said(capsys)
    assert main(["plan", *SMALL, card(5), "cluster.nodes=2", "--smallest", "--json"]) == 3
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert (plan["smallest"]["size"], plan["layouts"]) == (None, [])


def test_the_largest_micro_batch_is_told_with_its_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*SMALL, "cluster.gpus_per_node=1", card(36), "train.global_batch_size=64", "--largest", "micro_batch")
    assert main(["plan", *words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    word = f"train.micro_batch_size={plan['largest']['value']}"
    assert plan["largest"]["overrides"] == [word]
    assert all(word in layout["overrides"] for layout in plan["layouts"])
    assert plan["largest"]["larger"][0]["lacks"]
    assert main(["plan", *words]) == 0
    assert f"The largest micro-batch that fits: {plan['largest']['value']} sequences, {word}." in said(capsys)


def test_the_largest_that_needs_host_memory_names_the_word_for_the_largest_without(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word for word in SMALL if not word.startswith("zero.")]
    words += ["cluster.gpus_per_node=1", card(16), "--largest", "micro_batch"]
    assert main(["plan", *words]) == 0
    assert "zero.offload_optimizer=none asks for the largest without." in said(capsys)


def test_where_nothing_fits_the_cluster_and_the_changes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*SMALL, card(16), "cluster.nodes=1", "cluster.gpus_per_node=1")
    assert main(["plan", *words]) == 3
    text = said(capsys)
    assert "DOES NOT FIT" in text
    assert "Closest is FSDP" in text
    assert "The smallest cluster on which something fits is 4 GPUs (4 nodes of 1): cluster.nodes=4" in text
    assert "On this cluster the closest layout fits with " in text
    assert main(["plan", *words, "--json"]) == 3
    nearest = json.loads(capsys.readouterr().out)["plan"]["nearest"]
    assert nearest["cluster"]["gpus"] == 4
    assert nearest["closest"]["lacks_bytes"] > 0
    assert nearest["fixes"][0]["overrides"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("--days", "3"), "whose length is not set"),
        (("--tokens", "1T", "train.steps=5"), "sets the same"),
        (("--largest", "micro_batch", "--smallest"), "--largest asks for the size of a run"),
        (("--largest", "model"), "but model is set"),
        (("--tokens", "lots"), "tokens are a number"),
    ],
)
def test_what_does_not_go_together_is_refused(
    words: tuple[str, ...], rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *SMALL, *words]) == 2
    assert rule in " ".join(capsys.readouterr().err.split())
