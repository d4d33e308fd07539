"""Data parallelism: every data rank sees its own part of the global batch."""

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.estimate.rank.view import RankView, part_of
from launcher.spec import RunSpec, edit


def apply(view: RankView, spec: RunSpec) -> RankView:
    """Narrow the rank's share of the global batch."""
    degree = spec.data_degree
    return view if degree == 1 else view._replace(batch=part_of(view.batch, degree))


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of replicas that do not divide the data degree."""
    replicas, data = spec.parallel.replicate, spec.data_degree
    if data % replicas:
        rule = f"replicas of the sharded model must divide the data degree {data}"
        legal = edit.nearest(spec, "parallel.replicate", edit.divisors(data), lambda _: True)
        yield ConfigError("parallel.replicate", replicas, rule, legal)
