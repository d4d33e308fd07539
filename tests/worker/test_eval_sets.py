"""Evaluations on several named data sets: each has the loss that a run has which evaluates on it alone."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import training
from tests.support.helpers import needs

SAME = 1e-6  # Relative: the same operations on the same samples.
STEPS, EVERY = 4, 2
COMMON = (
    *("data=text", f"train.steps={STEPS}", f"train.eval_every={EVERY}", "train.eval_steps=2"),
    *(f"save.every={EVERY}", "save.keep=3", "save.last=true"),
)
KEYS = ("eval_loss", "eval_perplexity")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts to train on and two to evaluate on, which are not as easy; preferences likewise."""
    found = tmp_path_factory.mktemp("sets")
    for name, words in (("train", "red green blue "), ("code", "def red(): pass "), ("math", "1 + 1 = 2, 3 * 3 = 9; ")):
        (found / f"{name}.txt").write_text(words * 200)
        rows = [{"prompt": f"{words}{n}?", "chosen": f" {n} {name}", "rejected": f" {n + 1}, or so"} for n in range(24)]
        (found / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return found


def words_of(folder: Path, suffix: str = "txt", kind: str = "text") -> Mapping[str, tuple[str, ...]]:
    """A run that evaluates on both sets, one on each alone, and one that goes on from the first's half."""
    train = (*COMMON, f"data={kind}", f"data.path={folder}/train.{suffix}")
    paths = {name: f"{folder}/{name}.{suffix}" for name in ("code", "math")}
    both = ", ".join(f"{{name: {name}, path: {path}}}" for name, path in paths.items())
    alone = {name: (*train, f"data.eval_path={path}") for name, path in paths.items()}
    return {"both": (*train, f"data.eval_sets=[{both}]"), **alone}


def trained(folder: Path, runs: Mapping[str, tuple[str, ...]], *words: str) -> Mapping[str, list[dict[str, Any]]]:
    """Lines of evaluated steps of runs on two ranks; ``resumed`` is ``both``, done again from its first checkpoint."""
    training.train_all(folder, {name: (*words, *run) for name, run in runs.items()}, ranks=2)
    again = folder / "again" / "resumed"
    shutil.copytree(folder / "both", again)
    shutil.rmtree(again / "checkpoints" / f"step-{STEPS:08d}")
    training.train_all(folder / "again", {"resumed": (*words, *runs["both"])}, ranks=2)
    found = {name: training.lines(folder / name) for name in runs} | {"resumed": training.lines(again)}
    return {name: [line for line in lines if "eval_loss" in line] for name, lines in found.items()}


def check(found: Mapping[str, list[dict[str, Any]]], *, has_perplexity: bool = True) -> None:
    """Compare the evaluations of all steps."""
    assert [line["step"] for line in found["both"]] == [*range(EVERY, STEPS + 1, EVERY)]
    for both, code, maths, resumed in zip(*(found[name] for name in ("both", "code", "math", "resumed")), strict=True):
        assert both["loss"] == pytest.approx(code["loss"], rel=SAME)
        assert both["eval_loss/code"] == pytest.approx(code["eval_loss"], rel=SAME)
        assert both["eval_loss/math"] == pytest.approx(maths["eval_loss"], rel=SAME)
        assert both["eval_loss/code"] != pytest.approx(both["eval_loss/math"], rel=1e-3)
        assert both["eval_loss"] == pytest.approx((code["eval_loss"] + maths["eval_loss"]) / 2, rel=SAME)
        names = [key for key in both if key.startswith(KEYS)]
        assert names == [f"{key}{name}" for key in KEYS[: 1 + has_perplexity] for name in ("", "/code", "/math")]
        for name in ("", "/code", "/math") if has_perplexity else ():
            assert both[f"eval_perplexity{name}"] == pytest.approx(math.exp(both[f"eval_loss{name}"]), rel=1e-12)
        assert {key: resumed[key] for key in names} == pytest.approx({key: both[key] for key in names}, rel=SAME)


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["sft", "dpo"])
def test_trl_evaluates_on_each_set_too(task: str, folder: Path, tmp_path: Path) -> None:
    needs("trl", "its runs need the extra 'trl'")
    kind, suffix = ("text", "txt") if task == "sft" else ("rows", "jsonl")
    words = ("parallel=fsdp", f"task={task}", "train.sequence_length=64")
    check(trained(tmp_path, words_of(folder, suffix, kind), *words), has_perplexity=task == "sft")


@pytest.mark.parametrize("engine", ["fsdp", pytest.param("zero2", marks=pytest.mark.thorough)])
def test_each_set_has_the_loss_of_a_run_that_evaluates_on_it_alone(engine: str, folder: Path, tmp_path: Path) -> None:
    check(trained(tmp_path, words_of(folder), f"parallel={engine}"))
