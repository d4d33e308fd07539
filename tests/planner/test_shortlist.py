"""The best layouts as short runs: what they leave out of the training, how long they may take, what they cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.base.errors import ConfigErrors
from launcher.config.catalog import Catalog
from launcher.planner.keys import SEARCHED
from launcher.planner.planning import plan
from launcher.planner.question import ask
from launcher.planner.shortlist import SAFETY, START_S, Shortlist, shortlist
from launcher.spec.edit import value_at
from tests.support.helpers import CPU_HOST, make_spec
from tests.support.measured_layouts import WORDS, answered


def short(*words: str, steps: int = 20) -> Shortlist:
    question, layouts = answered(*WORDS, *words)
    return shortlist(question, layouts, steps=steps)


def test_a_short_run_is_the_layout_that_was_planned() -> None:
    chosen = short()
    assert len(chosen.layouts) == 2
    for layout, words in zip(chosen.layouts, chosen.overrides, strict=True):
        run = make_spec(*chosen.words, *words)
        assert {path: value_at(run, path) for path in SEARCHED} == {
            path: value_at(layout.spec, path) for path in SEARCHED
        }
        assert (run.global_batch_size, run.sequence_length) == (8, layout.spec.sequence_length)
        assert (run.steps, run.data.source, run.save.last, run.save.every) == (20, "synthetic", False, None)
        assert (run.train.eval_every, run.tracking.kind, run.cluster.requeues) == (None, "none", 0)


def test_what_the_words_say_of_data_checkpoints_and_length_is_left_out_and_told() -> None:
    tasks = ("save.export=safetensors", "data.tokenizer=words", "eval.tasks=[mmlu]")
    said = ("train.steps=1000", "data=tokens", "data.path=x.bin", "save.every=100", *tasks, "tracking=wandb")
    chosen = short(*said, "train.eval_every=50", "train.log_every=10")
    assert chosen.left_out == (*said, "train.eval_every=50", "train.log_every=10")
    assert chosen.training == (*answered(*WORDS, *said, "train.eval_every=50", "train.log_every=10")[0].single,)
    run = make_spec(*chosen.words, *chosen.overrides[0])
    assert (run.data.path, run.train.log_every, run.eval.tasks) == (None, 1, ())
    assert short().left_out == ()


def test_what_a_recipe_says_of_them_is_left_out_too(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(
        "schema: 1\nsummary: a test\nchoose: {data: tokens}\nset: {data.path: x.bin, train.steps: 700, "
        "data.tokenizer: words, eval.tasks: [mmlu], save.export: safetensors}\n"
        "sweep: {train.micro_batch_size: [1, 4]}\n"
    )
    words = [word for word in WORDS if word not in ("train.micro_batch_size=4", "parallel=ddp,fsdp")]
    question = ask([*words, "recipe=mine", "parallel=fsdp"], catalog=Catalog(folder=tmp_path), facts=CPU_HOST)
    chosen = shortlist(question, plan(question).layouts[:1])
    tasks = ("data.tokenizer=words", "eval.tasks=[mmlu]", "save.export=safetensors")
    assert chosen.left_out == ("data=tokens", "data.path=x.bin", "train.steps=700", *tasks)
    run = make_spec(*chosen.words, *chosen.overrides[0], folder=tmp_path)
    assert (run.data.source, run.data.path, run.steps, run.eval.tasks) == ("synthetic", None, 20, ())
    assert "train.micro_batch_size=4" in chosen.overrides[0], "which of the values is said"


def test_learning_rates_are_those_of_the_training() -> None:
    chosen = short("optimizer.warmup_steps=500", "train.steps=9000")
    run = make_spec(*chosen.words, *chosen.overrides[0])
    assert (run.optimizer.warmup_steps, run.optimizer.decay_steps) == (500, 9000)


def test_the_time_limit_follows_from_the_slowest_and_is_never_above_the_typed_one() -> None:
    chosen = short(steps=20000)
    slowest = max(layout.speed.step_seconds for layout in chosen.layouts if layout.speed is not None)
    margin = chosen.runs[0].cluster.save_margin_s
    assert 0 <= 60 * chosen.time_limit_min - (START_S + SAFETY * 20000 * slowest + margin) < 60
    assert f"cluster.time_limit_min={chosen.time_limit_min}" in chosen.words
    assert short("cluster.time_limit_min=9").time_limit_min == 9
    long = short("cluster.time_limit_min=2880")
    assert long.time_limit_min == short().time_limit_min
    assert long.left_out == ("cluster.time_limit_min=2880",)


def test_the_gpu_hours_are_those_of_the_steps_and_at_most_those_of_the_limits() -> None:
    chosen = short("cluster.price_per_gpu_hour=2.5")
    speeds = [layout.speed for layout in chosen.layouts if layout.speed is not None]
    assert chosen.gpu_hours == pytest.approx(sum(20 * 2 * speed.step_seconds / 3600 for speed in speeds))
    assert chosen.most_gpu_hours == pytest.approx(2 * 2 * chosen.time_limit_min / 60)
    assert chosen.price_per_gpu_hour == 2.5


def test_one_step_measures_nothing() -> None:
    with pytest.raises(ConfigErrors) as caught:
        short(steps=1)
    assert caught.value.errors[0].rule == "must be at least 2, since the first half of the steps is warm-up"
