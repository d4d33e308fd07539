"""Expert parallelism: the routed experts of a layer are distributed over ranks."""

from collections.abc import Iterator
from itertools import chain

from launcher.base.errors import ConfigError
from launcher.estimate.rank.view import RankView, part_of
from launcher.spec import RunSpec, edit


def apply(view: RankView, spec: RunSpec) -> RankView:
    """Narrow the rank's share of the routed experts."""
    return view if spec.parallel.expert == 1 else view._replace(experts=part_of(view.experts, spec.parallel.expert))


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of degrees that do not divide the experts, and of groups that do not divide the world."""
    degree, experts = spec.parallel.expert, spec.model.num_experts
    if degree == 1:
        return
    if not experts:
        rule = "expert parallel ranks share the experts of a layer, and the model has none (model.num_experts=0)"
        yield ConfigError("parallel.expert", degree, rule, ["parallel.expert=1"])
        return
    if experts % degree:
        rule = f"expert parallel ranks must divide the {experts} experts"
        legal = edit.nearest(spec, "parallel.expert", edit.divisors(experts), lambda _: True)
        yield ConfigError("parallel.expert", degree, rule, legal)
    if not _divides_world(spec):
        inside, stages = spec.parallel.expert_tensor or spec.parallel.tensor, spec.parallel.pipeline
        rule = (
            f"expert {degree} x expert_tensor {inside} x pipeline {stages} = {degree * inside * stages} ranks"
            f" hold one copy of the experts; it must divide the world of {spec.gpus}"
        )
        legal = chain(
            edit.nearest(spec, "parallel.expert", edit.divisors(experts), _divides_world),
            edit.nearest(spec, "parallel.expert_tensor", range(1, inside), _divides_world, limit=2),
        )
        yield ConfigError("parallel.expert", degree, rule, legal)


def _divides_world(spec: RunSpec) -> bool:
    parallel = spec.parallel
    inside = parallel.expert_tensor or parallel.tensor
    return spec.gpus % (parallel.expert * inside * parallel.pipeline) == 0
