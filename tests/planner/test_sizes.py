"""Sizes of a cluster, and a question of another size."""

from __future__ import annotations

from itertools import islice, pairwise

from launcher.planner.smallest import MOST_IN_TIME, size_of, sized, sizes
from tests.support.questions import asked


def test_within_a_node_sizes_are_its_divisors_and_beyond_it_whole_nodes() -> None:
    found = [size.gpus for size in islice(sizes(asked()), 8)]
    assert found == [1, 2, 4, 8, 16, 24, 32, 40]


def test_beyond_sixteen_nodes_a_step_is_an_eighth_at_most() -> None:
    nodes = [size.nodes for size in sizes(asked("cluster.gpus_per_node=8"), most=MOST_IN_TIME)]
    assert nodes == sorted(set(nodes))
    assert set(range(1, 17)) <= set(nodes)
    assert all(after - before <= max(1, before / 8) for before, after in pairwise(nodes))
    assert nodes[-1] == MOST_IN_TIME


def test_the_size_of_a_node_that_is_typed_is_kept() -> None:
    assert {size.gpus_per_node for size in sizes(asked("cluster.gpus_per_node=4"))} == {4}


def test_nodes_that_are_typed_are_the_most_unless_more_are_asked_for() -> None:
    question = asked("cluster.nodes=19", "cluster.gpus_per_node=4")
    assert [(s.nodes, s.gpus_per_node) for s in islice(sizes(question), 4)] == [(1, 1), (1, 2), (1, 4), (2, 4)]
    assert [size.nodes for size in sizes(question)][-2:] == [18, 19]
    assert [size.nodes for size in sizes(question, beyond=True)][-1] > 19


def test_a_question_of_another_size_is_the_same_training() -> None:
    question = asked("cluster.nodes=2")
    size = next(iter(sizes(question)))
    other = sized(question, size)
    assert size_of(other) == size
    assert [each.spec.global_batch_size for each in other.openings] == [8]
    spec = other.compose(()).require()
    assert (spec.cluster.nodes, spec.cluster.gpus_per_node, spec.global_batch_size) == (1, 1, 8)
    assert spec == other.openings[0].spec
