"""Why a layout is slower than the first: the difference of the two estimates, part by part.

The loss is in tokens/s: ``1 - t_first / t`` for two steps of the same tokens. The share of a part is the extra time it
takes compared with the first, divided by the layout's own step time, so the shares add up to the loss. In a pipeline
the parts are those of a stage of mean length, and the extra time of the slowest stage is a part of its own. If engines
differ, so do their measured constants: the parts are compared at the first's constant, and the effect of the layout's
own is a separate part. Waiting for stragglers is proportional to all the other parts, and distributed over them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from launcher.estimate.speed.network import network_of
from launcher.estimate.speed.result import NOISE, SpeedEstimate
from launcher.estimate.speed.terms import PARTS, SpeedTerm
from launcher.planner import wording
from launcher.planner.layouts import Layout
from launcher.spec import RunSpec

_SMALL = 0.2  # A cause is named only if it has at least this share of the largest cause.
_PASS_PARTS = PARTS[: PARTS.index("pipeline")]  # Parts of a stage's passes, which take longer in an uneven pipeline.
_ACCUMULATION, _UNEVEN, _CONSTANT = "added_up", "uneven", "constant"
"""Parts besides those of a step: gradient accumulation, the slowest stage, the measured constant."""

type Shares = Mapping[str, float]
"""Seconds of a step, or shares of the loss, by part or cause; they add up to the whole."""


def explained(layouts: Sequence[Layout], first: Layout | None = None) -> tuple[Layout, ...]:
    """Layouts with the reason why each is slower than ``first``, by default the first of them."""
    if not layouts:
        return ()
    best = first or layouts[0]
    return tuple(each if each is best else replace(each, loses=loss_text(each, best)) for each in layouts)


def loss(layout: Layout, first: Layout) -> float | None:
    """The loss in tokens/s per GPU as a share of the first's, negative if the layout is faster; None if unknown."""
    if layout.speed is None or first.speed is None:
        return None
    return 1 - layout.speed.tokens_per_second_per_gpu / first.speed.tokens_per_second_per_gpu


def loss_text(layout: Layout, first: Layout) -> str:
    """The largest causes with their percentage of the speed, and the rest; empty if a speed is unknown."""
    lost = loss(layout, first)
    if lost is None:
        return ""
    digits = 0 if abs(lost) >= 0.1 else 1
    total = round(100 * lost, digits)
    if not total:
        return "as fast as the first"
    named = {cause: round(100 * share, digits) for cause, share in _largest(causes(layout, first), lost)}
    rest = round(total - sum(named.values()), digits)
    named |= {"the rest": rest} if rest else {}
    return ", ".join(f"{cause}: {-percent:+.{digits}f}%" for cause, percent in named.items())


def _largest(found: Shares, lost: float) -> Iterator[tuple[str, float]]:
    """The two largest losses, the second if not small compared with the first, and a gain that offsets much of it."""
    first, *others = sorted(found.items(), key=lambda item: -item[1])
    yield first
    if others and others[0][1] >= _SMALL * first[1]:
        yield others[0]
    if len(others) > 1 and -others[-1][1] >= max(lost / 2, _SMALL * first[1]):
        yield others[-1]


def causes(layout: Layout, first: Layout) -> Shares:
    """Shares of the loss by cause, which add up to it; negative for what the layout does faster."""
    assert layout.speed is not None, "the causes of an unknown loss"
    assert first.speed is not None
    own, best = _shares(layout.spec, layout.speed), _shares(first.spec, first.speed)
    ratio = layout.speed.constant.value / first.speed.constant.value
    scale = first.speed.tokens / layout.speed.tokens * layout.speed.gpus / first.speed.gpus
    step = layout.speed.step_seconds
    found = {_cause_text(_CONSTANT, layout.spec, first.spec): 1 - ratio}
    for part in {**own, **best}:
        takes, took = own.get(part, 0.0), best.get(part, 0.0)
        cause = _cause_text(part, layout.spec, first.spec)
        if took > NOISE >= takes:
            cause = f"without {_cause_text(part, first.spec, layout.spec)}"
        found[cause] = found.get(cause, 0.0) + (takes * ratio - took / scale) / step
    return found


def _shares(spec: RunSpec, speed: SpeedEstimate) -> Shares:
    """Seconds by part, with waiting for stragglers distributed and the slowest stage as a part of its own."""
    factor = speed.step_seconds / (speed.step_seconds - speed.exposed("waiting"))
    times = [stage.seconds for stage in speed.stages]
    even = sum(times) / len(times) / max(times)
    found: dict[str, float] = {}
    for term in speed.terms:
        if term.part == "waiting":
            continue
        part, seconds = _part(term), term.exposed_seconds * factor
        if part in _PASS_PARTS:
            found[_UNEVEN] = found.get(_UNEVEN, 0.0) + seconds * (1 - even)
            seconds *= even
        found[part] = found.get(part, 0.0) + seconds
    return found


def _part(term: SpeedTerm) -> str:
    """The part of a term; gradient accumulation is not a part of the passes."""
    return _ACCUMULATION if term.part == "memory_bound" and term.what.startswith("gradients") else term.part


def _cause_text(part: str, spec: RunSpec, best: RunSpec) -> str:
    parallel, m, ranks = spec.parallel, spec.gradient_accumulation, spec.data_degree
    optimizer = f"{wording.sharding(spec)} on {ranks} ranks" if ranks > 1 else wording.engine(spec)
    causes = {
        _CONSTANT: f"the measured constant of {wording.engine(spec)}",
        _UNEVEN: _stages(spec),
        _ACCUMULATION: f"gradient accumulation over {m:,} micro-batches",
        "bubble": f"the bubble of {parallel.pipeline} stages with {m:,} micro-batches",
        "pipeline": f"transfers between {parallel.pipeline} stages",
        "tensor": f"collectives of tensor {parallel.tensor}{_over(spec, parallel.tensor)}",
        "context": f"exchange of {_contexts(spec)}{_over(spec, parallel.tensor * parallel.context * parallel.ulysses)}",
        "expert": f"all-to-alls of expert {parallel.expert}{_over(spec, parallel.tensor * parallel.expert)}",
        "data": _data(spec),
        "recompute": _recomputed(spec),
        "loss": f"the {spec.train.loss} loss",
        "host": "kernel launches by the host",
        "offload": f"{'parameters' if spec.zero.offload_parameters != 'none' else 'optimizer'} on the host",
        "optimizer": f"the optimizer step of {optimizer}",
        "checkpoint": "copies for checkpoints",
    }
    return causes[part] if part in causes else _compute(part, spec, best)


def _compute(part: str, spec: RunSpec, best: RunSpec) -> str:
    """Why products, attention or memory-bound kernels take longer; first the change that shrinks kernels most."""
    uneven = spec.parallel.pipeline > 1 and spec.parallel.pipeline != best.parallel.pipeline
    kernels = "memory-bound kernels" if part == "memory_bound" else part.replace("_", " ")
    otherwise = _stages(spec) if uneven else kernels
    engine = wording.engine(spec)
    return next(_slower(part, spec, best), otherwise if engine == wording.engine(best) else f"{otherwise} of {engine}")


def _stages(spec: RunSpec) -> str:
    return f"the slowest of {spec.parallel.pipeline} uneven stages"


def _slower(part: str, spec: RunSpec, best: RunSpec) -> Iterator[str]:
    parallel, other, model = spec.parallel, best.parallel, spec.model
    wide = model.num_attention_heads * (model.v_head_dim or model.head_size) // parallel.tensor
    if parallel.tensor > other.tensor:
        if part == "matrix_products":
            yield f"tensor {parallel.tensor} leaves {wide:,}-wide matrix products"
        yield f"tensor {parallel.tensor} leaves small kernels"
    if parallel.tensor > 1 and other.sequence and not parallel.sequence and part == "memory_bound":
        yield f"norms repeated on {parallel.tensor} tensor ranks"
    if part == "attention" and parallel.context * parallel.ulysses > other.context * other.ulysses:
        yield f"attention in chunks for {_contexts(spec)}"
    if (rows := _rows(spec)) < _rows(best):
        yield f"matrix products of {rows:,} tokens"
    if parallel.expert != other.expert or parallel.expert_tensor != other.expert_tensor:
        yield f"experts on {parallel.expert} ranks"


def _rows(spec: RunSpec) -> int:
    return spec.micro_batch_size * spec.sequence_length // (spec.parallel.context * spec.parallel.ulysses)


def _contexts(spec: RunSpec) -> str:
    named = (("context", spec.parallel.context), ("Ulysses", spec.parallel.ulysses))
    return " and ".join(f"{name} {degree}" for name, degree in named if degree > 1) or "the sequence"


def _data(spec: RunSpec) -> str:
    if spec.zero.stage == 3:
        return f"all-gathers of {wording.sharding(spec)}{_over(spec, spec.parallel.tensor * spec.shard_degree)}"
    return f"reductions of {wording.sharding(spec)}{_over(spec, spec.gpus // spec.parallel.pipeline)}"


def _recomputed(spec: RunSpec) -> str:
    mode = spec.checkpointing.mode
    return f"recomputation of the {spec.train.loss} loss" if mode == "none" else f"{mode} recomputation"


def _over(spec: RunSpec, ranks: int) -> str:
    """`` over the network`` for a group of ranks that extends beyond NVLink or a node; else empty."""
    network = network_of(spec)
    return " over the network" if network is not None and ranks > network.span else ""
