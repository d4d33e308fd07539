"""Context parallelism: the tokens of one sequence are split over ranks in every layer."""

from collections.abc import Iterator
from itertools import chain

from launcher.base.errors import ConfigError
from launcher.estimate.rank.view import RankView, part_of
from launcher.spec import RunSpec, edit


def apply(view: RankView, spec: RunSpec) -> RankView:
    """Narrow the rank's share of the tokens of a sequence."""
    return view if spec.parallel.context == 1 else view._replace(tokens=part_of(view.tokens, spec.parallel.context))


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of a sequence that does not give each rank two equal chunks, one from each end to balance a causal mask.

    Both engines with context parallelism require this: Megatron-LM ``training/arguments.py`` (``seq_length %
    (context_parallel_size * 2)``) and ``torch.distributed.tensor.experimental.context_parallel`` (load balance).
    """
    if _divides(spec):
        return
    length, degree = spec.sequence_length, spec.parallel.context
    rule = f"must be a multiple of 2 x context {degree} = {2 * degree}: every rank takes a chunk from each end"
    legal = edit.nearest(spec, "train.sequence_length", edit.multiples_around(length, 2 * degree), _divides, limit=2)
    smaller = edit.nearest(spec, "parallel.context", range(1, degree), _divides, limit=3)
    yield ConfigError("train.sequence_length", length, rule, chain(legal, smaller))


def _divides(spec: RunSpec) -> bool:
    return spec.parallel.context == 1 or spec.sequence_length % (2 * spec.parallel.context) == 0
