"""Megatron sequence parallelism: norms and residuals split by token over the TP ranks (arXiv:2205.05198)."""

from collections.abc import Iterator
from itertools import chain

from launcher.base.errors import ConfigError
from launcher.estimate.rank.view import RankView, part_of
from launcher.spec import RunSpec, edit


def apply(view: RankView, spec: RunSpec) -> RankView:
    """Narrow the rank's share of the tokens outside attention and MLP."""
    if not spec.parallel.sequence:
        return view
    return view._replace(residual=part_of(view.residual, spec.parallel.tensor))


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors without tensor parallel ranks to split over, or with ranks that do not divide the tokens of a rank."""
    degree = spec.parallel.tensor
    if not spec.parallel.sequence:
        return
    if degree == 1:
        rule = "sequence parallelism splits over the tensor parallel ranks, and parallel.tensor is 1"
        yield ConfigError("parallel.sequence", True, rule, ["parallel.sequence=false", "parallel.tensor=2"])
    elif spec.gpus % spec.model_parallel == 0 and not _divides(spec):  # Otherwise the degrees are refused already.
        length, cut = spec.sequence_length, degree * spec.parallel.context * spec.parallel.ulysses
        rule = f"with parallel.sequence=true it must be a multiple of {cut}, the ranks that share a sequence"
        legal = edit.nearest(spec, "train.sequence_length", edit.multiples_around(length, cut), _divides, limit=2)
        yield ConfigError("train.sequence_length", length, rule, chain(legal, ("parallel.sequence=false",)))


def _divides(spec: RunSpec) -> bool:
    parallel = spec.parallel
    return spec.sequence_length % (parallel.tensor * parallel.context * parallel.ulysses) == 0
