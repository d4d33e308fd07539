"""The data of a Megatron-LM argument list: one indexed data set, or nothing but made-up ids, and never any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main
from launcher.config import left_out
from launcher.importers import Imported
from launcher.importers.megatron import read
from tests.support.foreign_files import SIZES
from tests.support.helpers import make_spec

WHOLE = f"{SIZES} --micro-batch-size 1 --global-batch-size 8 --train-iters 100 --bf16"
EVALUATES = "--eval-interval 10 --eval-iters 2"


def imported(arguments: str) -> Imported:
    return read(f"{WHOLE} {arguments}", "args.txt")


def data_of(found: Imported) -> dict[str, Any]:
    settings = found.recipe["set"]
    return {"data": found.recipe["choose"]["data"], **{key: settings[key] for key in settings if key[:5] == "data."}}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--mock-data", {"data": "synthetic"}),
        ("--data-path /d/text_document --split 100,0,0", {"data": "tokens", "data.path": "/d/text_document"}),
        ("--data-path 1.0 /d/a --split 100,0,0", {"data": "tokens", "data.path": "/d/a"}),
        ("--train-data-path /d/a --valid-data-path /d/b", {"data": "tokens", "data.path": "/d/a"}),
        (
            f"--data-path /d/a --split 949,50,1 {EVALUATES}",
            {"data": "tokens", "data.path": "/d/a", "data.eval_fraction": 0.051},
        ),
        (
            f"--train-data-path 3 /d/a 1 /d/b --valid-data-path /d/c {EVALUATES}",
            {
                "data": "tokens",
                "data.mix": [{"path": "/d/a", "weight": 3.0}, {"path": "/d/b", "weight": 1.0}],
                "data.eval_path": "/d/c",
            },
        ),
        ("--data-path /d/a /d/b --split 1,0,0", {"data": "tokens", "data.mix": [{"path": "/d/a"}, {"path": "/d/b"}]}),
        (f"--data-path /d/a {EVALUATES}", {"data": "tokens", "data.path": "/d/a", "data.eval_fraction": 0.031}),
    ],
)
def test_one_data_set_is_read_with_what_is_held_out_of_it(arguments: str, expected: dict[str, Any]) -> None:
    found = imported(arguments)
    assert data_of(found) == expected
    assert not any(left.matters for left in found.left_out)


def test_ids_of_a_large_vocabulary_are_of_32_bits() -> None:
    found = read(f"{WHOLE.replace('1000', '128256')} --data-path /d/a --split 1,0,0", "args.txt")
    assert data_of(found)["data.token_dtype"] == "uint32"


@pytest.mark.parametrize(
    ("arguments", "key", "effect"),
    [
        (
            "--data-path $DATA/a",
            "--data-path",
            "$DATA has no value; the data are made up here (data=synthetic); --set DATA=...",
        ),
        (
            "--data-path 0.3 0.7",
            "--data-path",
            "it names no data set; the data are made up here (data=synthetic); "
            "set data.path (with data=tokens) to the prefix of one",
        ),
        (
            "--per-split-data-args-path blend.json",
            "--per-split-data-args-path",
            "the data are made up here (data=synthetic); set data.path (with data=tokens) to the prefix of one",
        ),
    ],
)
def test_data_that_cannot_be_read_matter_and_are_not_replaced_by_others(arguments: str, key: str, effect: str) -> None:
    found = imported(arguments)
    assert data_of(found) == {"data": "synthetic"}
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == [(key, effect)]


def test_a_part_that_is_neither_trained_on_nor_evaluated_there_matters() -> None:
    [left] = [left for left in imported("--data-path /d/a --split 90,10,0").left_out if left.matters]
    assert left.effect == "the data: all are trained on where nothing is evaluated, and 90.0% there"


def test_without_data_megatron_makes_them_up_and_so_does_the_run() -> None:
    found = imported("")
    assert data_of(found) == {"data": "synthetic"}
    assert "no --data-path: Megatron-LM makes its data up then, and so does data=synthetic here" in found.not_understood


def test_a_split_that_is_none_is_an_error() -> None:
    [error] = imported("--data-path /d/a --split all").errors
    assert error.rule == "is the parts of training, validation and test: 969,30,1"


def test_check_asks_for_the_data_of_a_list_and_takes_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words of --lr-decay-iters, --load, --fim-data and --exit-interval, which once vanished, are judged too."""
    file = tmp_path / "args.sh"
    lost = "--load /models/base --fim-data --exit-interval 50 --lr-decay-style cosine"
    file.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {WHOLE} --data-path $DATA/text {lost}\n")
    words = ["check", "--megatron-args", str(file), "--no-native", "--json", "hardware=h100_80g"]
    assert main(words) == 2
    errors = {error["path"].rpartition(" ")[2]: error for error in json.loads(capsys.readouterr().out)["errors"]}
    assert {key for key in errors if key.startswith("--")} == {"--data-path", "--load", "--fim-data"}
    assert errors["--data-path"]["way_out"][0] == "--set DATA=..."
    assert main(["import", "megatron", str(file), "--partial", "--set", "DATA=/d", "--json"]) == 0
    overrides = json.loads(capsys.readouterr().out)["import"]["overrides"]
    assert {"data=tokens", "data.path=/d/text", "train.steps=50", "optimizer.decay_steps=100"} <= set(overrides)


def test_words_of_the_precision_and_the_recomputation_that_are_idle_pass_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """backend.extra once refused what the importer had put there: fp16, vocab-size, recompute-num-layers."""
    file = tmp_path / "args.yaml"
    arguments = dict.fromkeys(("--bf16", "--mock-data", "--recompute-activations", "--sequence-parallel"), True)
    sizes = dict(zip(WHOLE.split()[:-1:2], WHOLE.split()[1::2], strict=False))
    more = {"--recompute-num-layers": 1, "--padded-vocab-size": 1024, "--fp16": False}
    file.write_text(json.dumps({"MODEL_ARGS": {**sizes, **arguments, **more}}))
    words = ["check", "--megatron-args", str(file), "--no-native", "--json", "hardware=h100_80g"]
    assert main([*words, "cluster.gpus_per_node=8"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "fits"


def test_the_way_out_of_data_that_are_left_out_works_as_it_is_typed() -> None:
    found = imported("--data-path 0.3 0.7")
    [error] = left_out.errors("args.txt", found.left_out, (), partial="--partial")
    assert [*error.way_out] == ["data=tokens data.path=...", "--partial"]
    spec = make_spec(*found.overrides, "data=tokens", "data.path=/d/a")
    assert (spec.data.source, spec.data.path) == ("tokens", "/d/a")
    assert left_out.errors("args.txt", found.left_out, ("data", "data.path"), partial="--partial") == []
