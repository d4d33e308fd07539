"""The largest micro-batch, sequence and model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from launcher.base.errors import ConfigErrors
from launcher.config.catalog import Catalog
from launcher.planner import feasibility
from launcher.planner.judge import Preflight
from launcher.planner.largest import KEYS, Largest, largest
from launcher.planner.question import Question, ask
from tests.support.helpers import CPU_HOST, ROOT
from tests.support.questions import WORDS, card

JUDGE = Preflight()
ONE = ("cluster.gpus_per_node=1", "checkpointing=full", "train.loss=chunked")


def found(kind: str, *words: str, without: str = "") -> Largest:
    """The largest of a kind, with the words of a small question but one."""
    base = (*(word for word in WORDS if not without or not word.startswith(without)), *ONE, *words)

    def asking(further: Sequence[str]) -> Question:
        return ask((*base, *further), facts=CPU_HOST)

    return largest(kind, asking(()), JUDGE, asking)


def test_the_largest_micro_batch_fits_and_the_next_divisor_of_the_batch_does_not() -> None:
    answer = found("micro_batch", card(36), "train.global_batch_size=64")
    assert answer.words == (f"train.micro_batch_size={answer.value}",)
    assert 1 < answer.value < 64
    assert answer.question is not None
    layout = feasibility.fastest(answer.question, JUDGE)
    assert layout is not None
    assert layout.spec.micro_batch_size == answer.value
    assert answer.larger[0].value == 2 * answer.value
    assert answer.larger[0].lacks
    assert "too small on a GPU by" in answer.larger[1].lacks
    assert len(answer.larger) == 2


def test_a_micro_batch_ends_with_the_global_batch() -> None:
    answer = found("micro_batch")
    assert (answer.value, answer.larger) == (8, ())
    assert answer.limit == "it is the whole global batch"


def test_the_longest_sequence_is_that_of_the_models_positions_where_they_are_learned() -> None:
    answer = found("sequence", without="train.sequence_length")
    assert (answer.value, answer.larger) == (2048, ())
    assert "the model has no more positions" in answer.limit


def test_beyond_the_models_positions_a_sequence_comes_with_the_word_for_more() -> None:
    words = ("model=7b", "model.num_hidden_layers=1", card(60), "train.global_batch_size=1")
    answer = found("sequence", *words, without="train.sequence_length")
    assert answer.value > 4096
    assert answer.words == (f"train.sequence_length={answer.value}", f"model.max_position_embeddings={answer.value}")
    power = 2 ** (answer.value.bit_length() - 1)
    assert (answer.value - power) % (power // 4) == 0
    assert answer.larger[0].value == 2 * power
    typed = found("sequence", *words, "model.max_position_embeddings=4096", without="train.sequence_length")
    assert (typed.value, typed.larger) == (4096, ())


def test_the_largest_model_has_the_most_parameters_of_those_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Catalog, "groups", {**Catalog(folder=ROOT).groups, "model": ("1b", "125m", "350m", "3b")})
    answer = found("model", card(36), "train.sequence_length=128", "parallel.tensor=1", without="model")
    assert answer.words == ("model=350m",)
    assert answer.value == pytest.approx(0.35e9, rel=0.2)
    assert [each.words for each in answer.larger] == [("model=1b",), ("model=3b",)]
    assert all(each.lacks for each in answer.larger)


def test_nothing_is_an_answer() -> None:
    answer = found("micro_batch", card(4))
    assert (answer.words, answer.question) == ((), None)
    assert answer.larger


@pytest.mark.parametrize("kind", KEYS)
def test_a_word_for_what_is_looked_for_is_refused(kind: str) -> None:
    words = {"micro_batch": ("train.micro_batch_size=2",)}.get(kind, ())
    with pytest.raises(ConfigErrors, match="leave one of them out"):
        found(kind, *words)
