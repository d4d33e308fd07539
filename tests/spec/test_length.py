"""The number of steps that the tokens of a run make, and the same number in every engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.preflight import plan
from launcher.rundir.lock import settings
from launcher.spec import edit
from launcher.spec.parse import applied, parse, to_dict
from tests.support.helpers import composed_once, make_spec

GPUS = ("hardware=h100_80g", "cluster.gpus_per_node=8", "model=llama3_8b", "train.sequence_length=4096")


@given(
    tokens=st.integers(1, 10**13),
    batch=st.integers(1, 4096).map(lambda number: 8 * number),
    sequence=st.integers(1, 32).map(lambda number: 4096 * number),
)
def test_the_steps_of_a_number_of_tokens_hold_them_and_one_less_does_not(
    tokens: int, batch: int, sequence: int
) -> None:
    settings = {"train.steps": None, "train.tokens": tokens}
    settings |= {"train.global_batch_size": batch, "train.sequence_length": sequence}
    spec = edit.changed_at(composed_once(*GPUS), settings)
    assert (spec.steps - 1) * batch * sequence < tokens <= spec.steps * batch * sequence
    assert edit.length_override(spec, spec.steps) == f"train.tokens={spec.steps * batch * sequence}"


def test_a_tokens_run_has_the_steps_of_the_batch_that_follows_from_its_ranks() -> None:
    spec = composed_once(*GPUS, "train.tokens=15e12", "train.micro_batch_size=2", "train.gradient_accumulation=4")
    assert (spec.train.steps, spec.train.tokens) == (None, 15 * 10**12)
    assert spec.tokens_per_step == 8 * 2 * 4 * 4096
    assert spec.steps == 57_220_459  # 15e12 / 262,144 = 57,220,458.98
    assert edit.changed(spec, "cluster.nodes", 2).steps == 28_610_230
    assert parse(to_dict(spec)) == spec


def test_a_run_has_the_steps_that_are_typed_and_else_a_hundred() -> None:
    typed, default = composed_once("train.steps=7"), composed_once()
    assert (typed.steps, typed.train.steps, typed.train.tokens) == (7, 7, None)
    assert (default.steps, default.train.steps) == (100, 100)
    assert (edit.length_key(typed), edit.length_value(typed), edit.length_override(typed, 9)) == (
        "train.steps",
        7,
        "train.steps=9",
    )


@pytest.mark.parametrize(("preset", "engine"), [("fsdp", "fsdp"), ("zero3", "deepspeed"), ("tp", "megatron")])
def test_every_engine_trains_the_steps_that_the_tokens_make(preset: str, engine: str) -> None:
    words = (*GPUS, f"parallel={preset}", "train.global_batch_size=16", "optimizer.schedule=cosine")
    by_tokens = composed_once(*words, "train.tokens=1310721")  # 20 steps of 65,536 tokens, and one token.
    by_steps = composed_once(*words, "train.steps=21")
    assert by_tokens.steps == 21
    assert plan.translate(by_tokens, python="python") == plan.translate(by_steps, python="python")
    assert by_tokens.backend.name == engine


def test_a_record_of_a_tokens_run_says_the_tokens() -> None:
    said = settings(to_dict(composed_once(*GPUS, "train.tokens=1e9")))
    assert (said["train.tokens"], said["train.steps"]) == (10**9, None)


def test_epochs_are_steps_by_the_samples_of_the_data_and_so_are_evaluations_and_checkpoints_in_one() -> None:
    words = ("model=tiny", "train.global_batch_size=8", "train.micro_batch_size=1", "data.samples=1000")
    spec = composed_once(*words, "train.epochs=2.5", "train.evals_per_epoch=4", "save.per_epoch=2")
    assert (spec.steps, spec.epoch_steps, spec.eval_every, spec.save_every) == (313, 125.0, 31, 62)
    assert (edit.length_key(spec), edit.length_value(spec)) == ("train.epochs", 2.5)
    assert edit.length_text(spec) == "the 313 steps of train.epochs=2.5"
    longer = edit.length_override(spec, 626)
    assert applied(spec, longer).steps in (625, 626)  # type: ignore[union-attr]
    assert composed_once(*words, "train.epochs=0.3").steps == 38
    assert composed_once(*words).steps == 100
    assert composed_once(*words).eval_every is None
    assert edit.changed(spec, "data.samples", 100).eval_every == 3


def test_the_samples_of_an_epoch_are_counted_from_data_that_are_here_less_those_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 6401)
    words = ("model=tiny", f"data.path={tmp_path}/a.txt", "train.sequence_length=64", "train.global_batch_size=2")
    assert make_spec(*words, "train.epochs=3").steps == 150
    held_out = make_spec(*words, "train.epochs=3", "train.evals_per_epoch=1", "data.eval_fraction=0.1")
    assert (held_out.data.samples, held_out.steps, held_out.eval_every) == (90, 135, 45)
    assert make_spec(*words).data.samples is None
    assert make_spec(*words, "train.epochs=3", "data.samples=10").steps == 15
    (tmp_path / "ids.bin").write_bytes(bytes(2 * 641))
    ids = ("data=tokens", f"data.path={tmp_path}/ids.bin")
    assert make_spec(*words, *ids, "train.epochs=1").steps == 5
