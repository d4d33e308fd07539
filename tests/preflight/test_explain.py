"""``check --explain PILE``: the terms of a pile, printed so that one can compute them again."""

from __future__ import annotations

import json

import pytest

from launcher.cli import main
from launcher.estimate.memory.terms import PILES
from launcher.preflight import assess, explain
from launcher.views.check.detail import explanation_text
from tests.support.helpers import make_spec

SEVEN_B = ("model=7b", "parallel=fsdp", "precision=bf16", "hardware=h100_80g", "cluster.gpus_per_node=8")


def test_a_pile_is_printed_term_by_term_with_symbols_numbers_bytes_moments_and_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", *SEVEN_B, "--explain", "gather_buffers"]) == 0
    text = capsys.readouterr().out
    assert "gather buffers of the worst rank (stage 0) at its peak, loss backward" in text
    for line in (
        "    = z x (root + block)\n",
        "    = 2 x (262,148,096 + 202,383,360)\n",
        "    = 929,062,912 bytes, 0.87 GiB\n",
        "    when: output, loss, loss backward\n",
        "    source: trace of the live tensors of torch.distributed.fsdp.fully_shard,\n",
        "  root: parameters outside the blocks, before sharding\n",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("words", "whose"),
    [
        ("parallel=fsdp", "in 34 runs of Torchtitan, also on FSDP2 (launcher/estimate/memory/residuals.json)"),
        ("parallel=zero3", "runs of Torchtitan, the widest known band: too few runs of this kind were measured"),
        ("parallel=tp", "runs of megatron (launcher/estimate/memory/residuals.json)"),
    ],
)
def test_the_error_band_is_explained_by_the_runs_that_it_is_of(
    words: str, whose: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *SEVEN_B, "--no-native", words, "--explain", "logits"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "error band of the verdict: " in text
    assert whose in text
    assert main(["check", *SEVEN_B, "--no-native", words]) == 0
    assert "runs of" not in capsys.readouterr().out


@pytest.mark.parametrize("pile", PILES)
def test_the_terms_at_the_peak_sum_to_the_pile(pile: str) -> None:
    spec = make_spec(*SEVEN_B)
    estimate = assess.estimated(spec)
    expected = sum(each.bytes for each in estimate.piles if each.pile == pile)
    found = explain.explained(spec, next(each for each in PILES if each == pile))
    assert sum(term.bytes for term in found.at_peak) == expected
    assert explanation_text(found)


def test_the_document_has_the_explanation_beside_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *SEVEN_B, "--explain", "parameters", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (term,) = document["explain"]["terms"]
    assert term["symbols"] == "z_par x shard"
    assert term["numbers"] == f"4 x {document['parameters']['per_rank']:,}"
    assert term["bytes"] == 4 * document["parameters"]["per_rank"]
    assert document["explain"]["symbols"]["shard"] == "elements of this rank's shard"


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["-m", *SEVEN_B, "train.micro_batch_size=1,2"], "-m does not use it: it applies to a single run"),
        ([*SEVEN_B, "--engine", "trace"], "a trace has bytes but no formulas"),
    ],
)
def test_what_has_no_terms_of_one_run_is_refused(
    words: list[str], rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *words, "--explain", "logits"]) == 2
    assert rule in " ".join(capsys.readouterr().err.split())


def test_an_invalid_run_has_its_errors_and_no_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *SEVEN_B, "parallel.tensor=3", "--explain", "logits"]) == 2
    assert "parallel.tensor=3" in capsys.readouterr().out
