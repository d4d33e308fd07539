"""Runs whose data sets have other weights in each stage: each stage reads its own sets, also after a resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from launcher.worker.data.corpus import Mix, TokenFiles
from launcher.worker.data.order import Order, Position, Stage
from tests.support import training

STEPS, LENGTH, BATCH = 6, 32, 4
BEHIND = 3 * BATCH * LENGTH  # The second stage begins with the fourth step.


def corpora(folder: Path) -> list[TokenFiles]:
    for name, size in (("a", 40), ("b", 12), ("c", 20)):
        np.full(size * LENGTH + 1, ord(name), dtype=np.uint16).tofile(folder / f"{name}.bin")
    return [TokenFiles([folder / f"{name}.bin"], "uint16", length=LENGTH, vocabulary=256) for name in "abc"]


def read(folder: Path, places: range, **changes: object) -> str:
    """The letters of the data sets that two ranks read at these steps."""
    opened = corpora(folder)
    mix = Mix([Mix(opened, weights) for weights in ((1, 0, 0), (1, 3, 0), (0, 0, 1))], ())
    stages = tuple(map(Stage, (0, 3 * BATCH, 9 * BATCH), *mix.ranges))
    both = []
    for rank in range(2):
        order = Order(
            size=mix.size, seed=1, shuffle=True, global_batch_size=BATCH, micro_batch_size=1, data_rank=rank,
            data_ranks=2, stages=stages, **changes,  # type: ignore[arg-type]
        )  # fmt: skip
        both += [chr(mix.sample(each)[0]) for step in places for micro in order.samples(step) for each in micro]
    return "".join(both)


def test_a_stage_draws_by_its_own_weights_from_its_first_token_on(tmp_path: Path) -> None:
    assert set(read(tmp_path, range(1, 4))) == {"a"}
    second = read(tmp_path, range(4, 10))
    assert set(second) == {"a", "b"}
    assert 0.6 < second.count("b") / len(second) < 0.9
    assert set(read(tmp_path, range(10, 13))) == {"c"}


def test_a_stage_begins_after_the_same_tokens_where_a_resume_changed_the_batch(tmp_path: Path) -> None:
    later = {"start": Position(step=2, samples=8 * BATCH)}
    assert set(read(tmp_path, range(3, 4), **later)) == {"a", "b"}
    assert set(read(tmp_path, range(4, 5), **later)) == {"c"}


def test_each_epoch_of_a_stage_has_every_sample_once(tmp_path: Path) -> None:
    opened = corpora(tmp_path)
    mix = Mix([Mix(opened, (1, 0, 0)), Mix(opened, (0, 1, 1))], ())
    order = Order(
        size=mix.size, seed=3, shuffle=True, global_batch_size=1, micro_batch_size=1, data_rank=0, data_ranks=1,
        stages=tuple(map(Stage, (0, 7), *mix.ranges)),
    )  # fmt: skip
    assert len({order.sample(place) for place in range(7)}) == 7
    for epoch in range(2):
        found = [order.sample(7 + epoch * 40 + place) for place in range(40)]
        assert sorted(found) == [*range(40, 80)]


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["fsdp", "zero2", "tp"])
def test_a_run_reads_its_first_stage_as_a_run_of_that_data_and_resumes_in_the_second(
    engine: str, tmp_path: Path
) -> None:
    for name, words in (("a", "red green blue "), ("b", "1 + 1 = 2, 3 * 3 = 9; ")):
        (tmp_path / f"{name}.txt").write_text(words * 200)
    common = (f"parallel={engine}", "data=text", "optimizer.schedule=constant", "save.last=true", "save.every=5",
              "train.global_batch_size=4", "train.micro_batch_size=2", f"train.sequence_length={LENGTH}")  # fmt: skip
    mix = f"data.mix=[{{path: {tmp_path}/a.txt}},{{path: {tmp_path}/b.txt}}]"
    staged = (*common, mix, f"data.stages=[{{weights: [1, 0]}},{{after_tokens: {BEHIND}, weights: [0, 1]}}]")
    plain = (*common, f"data.path={tmp_path}/a.txt")
    training.train_all(tmp_path, {"halves": (*staged, f"train.steps={STEPS - 1}")}, ranks=2)
    runs = {"halves": staged, "whole": staged, "plain": plain}
    training.train_all(tmp_path, {name: (*words, f"train.steps={STEPS}") for name, words in runs.items()}, ranks=2)
    losses = {name: {line["step"]: line["loss"] for line in training.lines(tmp_path / name)} for name in runs}
    assert [losses["whole"][step] for step in (1, 2, 3)] == [losses["plain"][step] for step in (1, 2, 3)]
    assert losses["whole"][4] > losses["whole"][3] + 0.2, "the letters of the second stage are new"
    assert losses["whole"][4] != losses["plain"][4]
    assert losses["halves"] == losses["whole"]
