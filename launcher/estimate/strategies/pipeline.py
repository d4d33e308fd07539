"""Pipeline parallelism: consecutive layers on consecutive stages, several micro-batches in flight.

``launcher.estimate.rank.stages`` decides which layers a stage has and how many micro-batches it holds at once.
"""

from collections.abc import Iterator
from itertools import chain, islice

from launcher.base.errors import ConfigError
from launcher.estimate.rank.stages import (
    FOLDED,
    SPLIT,
    cut_of,
    flow_of,
    in_flight,
    predicted_in_flight,
    predicted_layers,
    rank_layers,
)
from launcher.estimate.rank.view import ONE, RankView
from launcher.spec import RunSpec, edit
from launcher.spec.change import batches_typed
from launcher.spec.parse import applied
from launcher.spec.run import ROUND

BY_STAGE = True  # A rank's share depends on its stage.


def apply(view: RankView, spec: RunSpec) -> RankView:
    """Narrow the rank to its layers, its ends of the model, and the micro-batches that it holds at once."""
    if spec.parallel.pipeline == 1:
        return view
    flow = flow_of(spec)
    embedding, head = flow.cut.ends(view.stage)
    held = in_flight(flow, view.stage)
    return view._replace(
        layers=rank_layers(flow.cut, view.stage),
        embedding=embedding,
        head=head,
        in_flight=held if view.in_flight is ONE else view.in_flight * held,
        predicted=predicted_layers(flow.cut, view.stage),
        predicted_in_flight=predicted_in_flight(flow, view.stage),
    )


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of stages without whole layers, or without the equal chunks that the schedule requires."""
    if spec.parallel.pipeline == 1:
        yield from _without_stages(spec)
        return
    if spec.parallel.layout:
        pass  # launcher/rules/world.py checks it.
    elif not _shares_out(spec):
        yield _uneven(spec)
    elif not _whole_chunks(spec):
        yield _uneven_chunks(spec)
    yield from _schedule(spec)


def _without_stages(spec: RunSpec) -> Iterator[ConfigError]:
    rule = "it only applies to a pipeline, and parallel.pipeline is 1"
    ends = "parallel.first_stage_layers parallel.last_stage_layers parallel.layout"
    yield from edit.refused(spec, f"parallel.virtual_pipeline {ends} parallel.schedule", rule, "parallel.pipeline=2")


def _shares_out(spec: RunSpec) -> bool:
    named = [size for size in (spec.parallel.first_stage_layers, spec.parallel.last_stage_layers) if size is not None]
    left, stages = cut_of(spec).counted - sum(named), spec.parallel.pipeline - len(named)
    if stages == 0:
        return left == 0
    return left >= stages and left % stages == 0


def _whole_chunks(spec: RunSpec) -> bool:
    parallel, layers = spec.parallel, cut_of(spec).counted
    named = [size for size in (parallel.first_stage_layers, parallel.last_stage_layers) if size is not None]
    stages = parallel.pipeline - len(named)
    sizes = [*named, (layers - sum(named)) // stages] if stages else named
    return all(size % parallel.virtual_pipeline == 0 for size in sizes)


def _uneven(spec: RunSpec) -> ConfigError:
    layers, stages = spec.model.num_hidden_layers, spec.parallel.pipeline
    first, last = spec.parallel.first_stage_layers, spec.parallel.last_stage_layers
    legal = [*edit.nearest(spec, "parallel.pipeline", edit.divisors(layers), _shares_out)]
    legal = [way for way in legal if (after := applied(spec, way)) and after.gpus % after.model_parallel == 0] or legal
    if first is None and last is None:
        rule = f"pipeline stages must divide the {layers} layers, or the first and last stage need explicit sizes"
        path = "parallel.first_stage_layers"
        even = edit.changed(spec, path, -(-layers // stages))
        own = edit.nearest(even, path, range(1, layers), _shares_out, limit=1)
        return ConfigError("parallel.pipeline", stages, rule, chain(own, legal))
    path = "parallel.first_stage_layers" if first is not None else "parallel.last_stage_layers"
    rule = f"the {layers} layers without those of the first and last stage must divide equally among the other stages"
    sizes = edit.nearest(spec, path, range(1, layers), _shares_out, limit=2)
    return ConfigError(path, first if first is not None else last, rule, chain(sizes, legal))


def _uneven_chunks(spec: RunSpec) -> ConfigError:
    chunks, path = spec.parallel.virtual_pipeline, "parallel.virtual_pipeline"
    whole = edit.changed(spec, path, 1)
    per_stage = sorted({len(rank_layers(cut_of(whole), stage)) for stage in range(spec.parallel.pipeline)})
    rule = f"model chunks must divide the {' and '.join(map(str, per_stage))} layers of a stage"
    return ConfigError(path, chunks, rule, edit.nearest(spec, path, edit.divisors(max(per_stage)), _whole_chunks))


def _schedule(spec: RunSpec) -> Iterator[ConfigError]:
    schedule, chunks = spec.parallel.schedule, spec.parallel.virtual_pipeline
    if schedule == "interleaved" and chunks == 1:
        per_stage = spec.model.num_hidden_layers // spec.parallel.pipeline
        legal = edit.nearest(spec, "parallel.virtual_pipeline", edit.divisors(per_stage), _whole_chunks, limit=2)
        rule = "the interleaved schedule needs several model chunks on each stage (parallel.virtual_pipeline)"
        yield ConfigError("parallel.schedule", schedule, rule, chain(legal, ("parallel.schedule=1f1b",)))
    elif schedule in FOLDED and chunks != 2:
        rule = f"{schedule} has two model chunks on each stage, one from either end of the model"
        way_out = ["parallel.virtual_pipeline=2", "parallel.schedule=zero_bubble"]
        yield ConfigError("parallel.virtual_pipeline", chunks, rule, way_out)
    if schedule in SPLIT:
        yield from _split(spec)
    elif schedule == "gpipe" and chunks > 1:
        rule = f"several model chunks per stage need the interleaved schedule, not {schedule}"
        way_out = ["parallel.schedule=interleaved", "parallel.virtual_pipeline=1"]
        yield ConfigError("parallel.virtual_pipeline", chunks, rule, way_out)
    elif chunks > 1 and not _full_rounds(spec, spec.gradient_accumulation):
        yield _broken_rounds(spec)


def _split(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of micro-batches that torch's split schedules refuse (``torch/distributed/pipelining/schedules.py``)."""
    schedule, stages, count = spec.parallel.schedule, spec.parallel.pipeline, spec.gradient_accumulation
    if schedule == "dualpipe_v" and count < 2 * stages:
        rule = f"DualPipeV needs a micro-batch for each of its {2 * stages} model chunks, and a step has {count}"
        counts, other_schedule = [2 * stages], "parallel.schedule=zbv"
    elif schedule == "zero_bubble" and count % max(1, count // stages):
        rule = f"zero bubble needs {count // stages} equal rounds of micro-batches, and a step has {count}"
        counts, other_schedule = [count - count % stages, count + -count % stages], "parallel.schedule=1f1b"
    else:
        return
    legal = (batches_typed(spec, other, spec.micro_batch_size) for other in counts)
    yield ConfigError("train.global_batch_size", spec.global_batch_size, rule, chain(legal, (other_schedule,)))


def _full_rounds(spec: RunSpec, count: int) -> bool:
    """True if all rounds, the last included, span the pipeline (Megatron-core ``pipeline_parallel/schedules.py``)."""
    stages, size = spec.parallel.pipeline, spec.pipeline_round
    return stages <= size <= count and (count % size == 0 or count % size >= stages)


def _broken_rounds(spec: RunSpec) -> ConfigError:
    """The error of rounds that do not span the pipeline, as interleaving needs (arXiv:2104.04473, section 2.2)."""
    stages, count, size = spec.parallel.pipeline, spec.gradient_accumulation, spec.pipeline_round
    needed = (
        f"a multiple of pipeline {stages} micro-batches"
        if size == stages
        else f"rounds of {size} micro-batches (--{ROUND}), each, also the last, of at least pipeline {stages}"
    )
    rule = f"the interleaved schedule needs {needed}, and an optimizer step has {count}"
    counts = sorted(edit.multiples_around(count, size), key=lambda other: abs(other - count))
    legal = (batches_typed(spec, other, spec.micro_batch_size) for other in counts if _full_rounds(spec, other))
    way_out = chain(islice(legal, 2), ("parallel.virtual_pipeline=1",))
    return ConfigError("train.global_batch_size", spec.global_batch_size, rule, way_out)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """A warning of a pipeline that is never full: 1F1B idles (p-1)/(m v + p-1) (arXiv:2104.04473, section 2.2)."""
    stages, count = spec.parallel.pipeline, spec.gradient_accumulation
    if count >= stages:
        return
    idle = (stages - 1) / (count * spec.parallel.virtual_pipeline + stages - 1)
    rule = f"an optimizer step has {count} micro-batch{'es' if count > 1 else ''} for {stages} pipeline stages, so "
    rule += (
        "there are too few for the weights' passes to fill the bubble"
        if spec.parallel.schedule in SPLIT
        else f"each stage is idle {idle:.0%} of the time: (p-1)/(m+p-1)"
    )
    way_out = [batches_typed(spec, 4 * stages, spec.micro_batch_size)]
    yield ConfigError("train.global_batch_size", spec.global_batch_size, rule, way_out)
