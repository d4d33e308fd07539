"""Which samples a rank sees: laws of the order, which hold for every size of the world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from launcher.worker.data.order import Order, Position, permuted

sizes = st.integers(1, 400)
seeds = st.integers(0, 2**32)


def order(**changes: Any) -> Order:
    base = Order(
        size=100,
        seed=1,
        shuffle=True,
        global_batch_size=24,
        micro_batch_size=1,
        data_rank=0,
        data_ranks=1,
    )
    return replace(base, **changes)


@given(size=sizes, seed=seeds)
def test_the_permutation_has_every_sample_once(size: int, seed: int) -> None:
    assert sorted(permuted(index, size, seed) for index in range(size)) == list(range(size))


def test_another_seed_gives_another_permutation() -> None:
    first, second = ([permuted(index, 1000, seed) for index in range(1000)] for seed in (1, 2))
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 20


@given(step=st.integers(1, 1000), ranks=st.sampled_from([1, 2, 3, 4, 6]), micro=st.sampled_from([1, 2]))
def test_the_ranks_of_any_world_share_out_the_same_global_batch(step: int, ranks: int, micro: int) -> None:
    alone = order().samples(step)
    shares = [
        [
            sample
            for row in order(data_rank=rank, data_ranks=ranks, micro_batch_size=micro).samples(step)
            for sample in row
        ]
        for rank in range(ranks)
    ]
    together = [sample for share in shares for sample in share]
    assert len(together) == 24
    assert sorted(together) == sorted(sample for row in alone for sample in row)


@given(step=st.integers(1, 1000))
def test_each_rank_sees_its_own_places(step: int) -> None:
    places = [
        {place for row in order(data_rank=rank, data_ranks=4).positions(step) for place in row} for rank in range(4)
    ]
    assert sum(map(len, places)) == len(set.union(*places)) == 24


@given(size=st.integers(1, 100), seed=seeds, shuffle=st.booleans())
def test_an_epoch_has_every_sample_once(size: int, seed: int, shuffle: bool) -> None:
    stream = Order(
        size=size,
        seed=seed,
        shuffle=shuffle,
        global_batch_size=1,
        micro_batch_size=1,
        data_rank=0,
        data_ranks=1,
    )
    for epoch in range(2):
        samples = [stream.samples(epoch * size + index + 1)[0][0] for index in range(size)]
        assert sorted(samples) == list(range(size))


def test_epochs_are_shuffled_anew() -> None:
    stream = order(global_batch_size=100)
    assert stream.samples(1) != stream.samples(2)
    assert stream.samples(1) == order(global_batch_size=100).samples(1)


def test_without_shuffling_the_order_is_that_of_the_corpus() -> None:
    stream = replace(order(), shuffle=False)
    assert [sample for row in stream.samples(2) for sample in row] == list(range(24, 48))


def test_micro_batches_have_their_size() -> None:
    rows = order(micro_batch_size=3, data_ranks=2, data_rank=1).samples(1)
    assert [len(row) for row in rows] == [3, 3, 3, 3]


def test_with_another_batch_a_run_goes_on_at_the_sample_after_the_last_that_was_seen() -> None:
    start = Position(step=3, samples=Position().after(3, 4))
    first, later = order(global_batch_size=4), order(global_batch_size=6, start=start)
    before = [place for step in (1, 2, 3) for part in first.positions(step) for place in part]
    after = [place for step in (4, 5) for part in later.positions(step) for place in part]
    assert before + after == list(range(3 * 4 + 2 * 6))
    assert start.after(5, 6) == 24
