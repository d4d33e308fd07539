"""Sizes of a cluster, from one GPU on, and a question asked of another size.

Sizes of one node are the divisors of its GPUs; beyond it come whole nodes: every number of them up to 16, then those in
steps of at most an eighth (18, 20, ... 32, 36, ...), which are the numbers with four binary digits and zeros.
What the words say of the size is a limit: ``cluster.gpus_per_node`` alone says what a node is, so that whole nodes are
searched; ``cluster.nodes`` says how many there are at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from launcher.planner.question import Question
from launcher.planner.result import GPUS, NODES, Assumption, Size
from launcher.spec import nearest
from launcher.spec.edit import changed_at, override

MOST_NODES, MOST_IN_TIME = 2**10, 2**14
"""Nodes of the largest cluster that is looked at: for memory alone, where more of them no longer help, and for time,
with 131,072 GPUs in nodes of eight more than any that is known of."""

_STEPS = 8
"""Sizes between a power of two and the next."""


def size_of(question: Question) -> Size:
    """The size that a question has."""
    cluster = question.openings[0].spec.cluster
    return Size(cluster.nodes, cluster.gpus_per_node)


def sizes(question: Question, *, most: int = MOST_NODES, beyond: bool = False) -> Iterator[Size]:
    """The sizes that a question may be asked of, the smallest first.

    Args:
        question: The question.
        most: Nodes of the largest.
        beyond: True to look at more nodes than the words say, too.
    """
    own = size_of(question)
    typed = NODES in question.fixed and not beyond
    most = own.nodes if typed else most
    if GPUS not in question.fixed or NODES in question.fixed:
        yield from (Size(1, gpus) for gpus in nearest.divisors(own.gpus_per_node) if gpus < own.gpus_per_node)
    whole = {nodes for nodes in _nodes() if nodes <= most} | ({most} if typed else set())
    yield from (Size(nodes, own.gpus_per_node) for nodes in sorted(whole))


def _nodes() -> Iterator[int]:
    """Every number to 16, then those with four binary digits and zeros."""
    yield from range(1, 2 * _STEPS)
    step = 2
    while _STEPS * step <= MOST_IN_TIME:
        yield from (digits * step for digits in range(_STEPS, 2 * _STEPS))
        step *= 2


def sized(question: Question, size: Size) -> Question:
    """The same question of another cluster: the training stays, its global batch among it.

    Args:
        question: The question.
        size: The size.
    """
    settings = {NODES: size.nodes, GPUS: size.gpus_per_node}
    kept = [each for each in question.assumptions if each.override.partition("=")[0] not in settings]
    before = dict(zip(settings, size_of(question), strict=True))
    words = [
        Assumption(override=override(path, value), why="the cluster's size that is looked at")
        for path, value in settings.items()
        if path not in question.fixed or value != before[path]
    ]
    openings = tuple(replace(opening, spec=changed_at(opening.spec, settings)) for opening in question.openings)
    return replace(question, assumptions=(*words, *kept), openings=openings)
