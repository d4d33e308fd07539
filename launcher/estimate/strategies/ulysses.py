"""DeepSpeed-Ulysses: tokens are split over ranks, and inside attention heads instead of tokens (arXiv:2309.14509).

Inside attention a rank holds all tokens of its share of the heads: as many bytes as all heads for its share of tokens.
"""

from collections.abc import Iterator
from itertools import chain

from launcher.base.errors import ConfigError
from launcher.estimate.rank.view import RankView, part_of
from launcher.spec import RunSpec, edit


def apply(view: RankView, spec: RunSpec) -> RankView:
    """Narrow the rank's share of the tokens of a sequence."""
    return view if spec.parallel.ulysses == 1 else view._replace(tokens=part_of(view.tokens, spec.parallel.ulysses))


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of degrees that leave no whole heads or no equal parts of the sequence."""
    degree = spec.parallel.ulysses
    if not _whole_heads(spec):
        heads, tensor = spec.model.num_attention_heads, spec.parallel.tensor
        of = f"{heads} attention heads" if tensor == 1 else f"{heads} attention heads / tensor {tensor}"
        rule = f"Ulysses ranks exchange tokens for heads: they must divide the {of}"
        legal = edit.nearest(spec, "parallel.ulysses", edit.divisors(heads), _whole_heads)
        yield ConfigError("parallel.ulysses", degree, rule, legal)
    if not _equal_parts(spec):
        length, cut = spec.sequence_length, degree * spec.parallel.context
        rule = f"must be a multiple of {cut}, the ranks that share a sequence"
        legal = edit.nearest(spec, "train.sequence_length", edit.multiples_around(length, cut), _equal_parts, limit=2)
        smaller = edit.nearest(spec, "parallel.ulysses", range(1, degree), _equal_parts, limit=2)
        yield ConfigError("train.sequence_length", length, rule, chain(legal, smaller))


def _whole_heads(spec: RunSpec) -> bool:
    return (
        spec.parallel.ulysses == 1
        or spec.model.num_attention_heads % (spec.parallel.ulysses * spec.parallel.tensor) == 0
    )


def _equal_parts(spec: RunSpec) -> bool:
    degree = spec.parallel.ulysses
    return degree == 1 or spec.sequence_length % (degree * spec.parallel.context) == 0
