"""Rules of expert parallelism under FSDP2: ranks split the experts of a layer and exchange tokens."""

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.job.versions import Need
from launcher.spec import RunSpec, edit

_TRIED = ("adamw", "sgd")
_PATH, _BACK = "parallel.expert", "parallel.expert=1"


def _need(package: str, since: str, because: str) -> Need:
    return Need(
        package=package,
        since=since,
        path=_PATH,
        asked=lambda spec: spec.parallel.expert > 1,
        because=because,
        way_out=_BACK,
    )


NEEDS = (
    _need("transformers", "5.23", "has no trainable token exchange (AllToAllEP)"),
    _need("torch", "2.15", "has not been tried with expert parallel gradients"),
)


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for layouts where FSDP2 cannot evenly shard a rank's experts, and for what the exchange lacks."""
    experts, degree, ranks = spec.model.num_experts, spec.parallel.expert, spec.shard_degree
    if degree == 1 or not experts or experts % degree or not ranks:
        return  # Each has its own error: no ranks are left if more replicas than GPUs are requested.
    if not spec.parallel.shard:
        rule = "expert parallelism combines with FSDP2, not with DDP"
        yield ConfigError(_PATH, degree, rule, ["parallel=fsdp", _BACK])
    elif not _in_replica(spec):
        rule = f"must divide the {ranks} ranks of a replica, which exchange tokens"
        yield ConfigError(_PATH, degree, rule, edit.nearest(spec, _PATH, edit.divisors(experts), _in_replica))
    elif not _evenly(spec):
        rule = f"{ranks // degree} ranks share the same {experts // degree} experts, whose rows do not divide evenly"
        yield ConfigError(_PATH, degree, rule, edit.nearest(spec, _PATH, edit.divisors(experts), _evenly))
    if spec.parallel.pipeline > 1:
        rule = "the memory of a pipeline with expert parallelism has not been measured"
        yield ConfigError(_PATH, degree, rule, [_BACK, "parallel.pipeline=1", "parallel=ep"])
    yield from _untried(spec)


def _untried(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for settings that need all gradients on one device mesh; expert parallelism uses two."""
    name, compute = spec.optimizer.name, spec.precision.compute
    if name not in _TRIED:
        rule = f"with expert parallelism this version runs {' or '.join(_TRIED)}"
        yield ConfigError("optimizer.name", name, rule, [f"optimizer={other}" for other in _TRIED] + [_BACK])
    if compute not in ("fp32", "bf16"):
        rule = "with expert parallelism this version trains in bf16 or fp32"
        yield ConfigError("precision.compute", compute, rule, ["precision=bf16", _BACK])
    rule = "this version does not compile blocks that exchange tokens, whose number varies at run time"
    yield from edit.refused(spec, "train.compile", rule, _BACK)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Warn about uneven routing, which nothing prevents."""
    degree = spec.parallel.expert
    if spec.script is None and degree > 1 and spec.model.num_experts:
        rule = (
            "memory and time assume even routing, and no loss balances the experts: a rank may get up to"
            f" {degree} times as many tokens for its experts as assumed"
        )
        ways = [_BACK] if spec.checkpointing.mode == "full" else ["checkpointing=full", _BACK]
        yield ConfigError(_PATH, degree, rule, ways)


def _in_replica(spec: RunSpec) -> bool:
    return spec.shard_degree % spec.parallel.expert == 0


def _evenly(spec: RunSpec) -> bool:
    """True if ranks with the same experts get whole experts each, or equal parts of their rows (``fully_shard``)."""
    model, degree = spec.model, spec.parallel.expert
    if degree == 1 or not _in_replica(spec):
        return degree == 1
    same, rows = spec.shard_degree // degree, (model.hidden_size, model.moe_intermediate_size)
    return model.num_experts // degree % same == 0 or all(size % same == 0 for size in rows)
