"""Pipeline parallelism: consecutive layers on consecutive stages, several micro-batches in flight.

The layers are cut into ``pipeline x virtual_pipeline`` chunks (:func:`chunk_sizes`), and stage ``r`` has every
``pipeline``-th of them from the ``r``-th on. The schedule decides how many micro-batches' activations a stage holds at
once (:func:`in_flight`), in units of all its layers, so that interleaving, in which a micro-batch is held in some
chunks and not in others, gives a fraction. The rules demand that layers divide as the schedule needs; the worker and
the translation read the same sizes from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain, islice

from launcher.errors import ConfigError
from launcher.rank.view import RankView
from launcher.spec import RunSpec, edit, nearest
from launcher.spec.change import batches_typed
from launcher.spec.run import ROUND


def apply(view: RankView, spec: RunSpec) -> RankView:
    """The rank's layers, whether it is the first or the last stage, and the micro-batches that it holds at once."""
    stages, last = spec.parallel.pipeline, spec.parallel.pipeline - 1
    if stages == 1:
        return view
    mirrored = spec.parallel.schedule == "dualpipe"
    layers = stage_layers(spec, view.stage)
    if mirrored:
        # DualPipe keeps two copies of the model: each rank runs a stage and the mirrored one (arXiv:2412.19437).
        layers += stage_layers(spec, last - view.stage)
    return view._replace(
        layers=layers,
        embedding=view.stage == 0 or (mirrored and view.stage == last),
        head=view.stage == last or (mirrored and view.stage == 0),
        in_flight=view.in_flight * in_flight(spec, view.stage),
    )


def chunk_sizes(spec: RunSpec) -> tuple[int, ...]:
    """Layers of each of the ``pipeline x virtual_pipeline`` model chunks in the order of the model.

    Layers that do not divide go to the earliest chunks. Sizes that the first and the last stage have by name are shared
    out among their chunks; with ``--account-for-embedding-in-pipeline-split`` and with
    ``--account-for-loss-in-pipeline-split`` the embedding and the loss count for a layer each (Megatron-core
    ``transformer_block.py``, ``get_num_layers_to_build``).
    """
    parallel = spec.parallel
    count, stages = parallel.pipeline * parallel.virtual_pipeline, parallel.pipeline
    embedding, loss = _counted_as_layers(spec)
    sizes: list[int | None] = [None] * count
    for stage, size in ((0, parallel.first_stage_layers), (stages - 1, parallel.last_stage_layers)):
        if size is not None:
            sizes[stage::stages] = _shared_out(size, parallel.virtual_pipeline)
    layers = spec.model.num_hidden_layers + embedding + loss
    left = max(0, layers - sum(size for size in sizes if size is not None))
    shares = iter(_shared_out(left, max(1, sizes.count(None))))
    result = [next(shares) if size is None else size for size in sizes]
    result[0] -= embedding
    result[-1] -= loss
    return tuple(result)


def _counted_as_layers(spec: RunSpec) -> tuple[int, int]:
    """1 for the embedding and for the loss, where each counts for a layer when they are shared out; else 0."""
    words = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
    embedding, loss = (1 if spec.backend.argument(word) else 0 for word in words)
    return embedding, loss


def _shared_out(layers: int, places: int) -> list[int]:
    """As evenly as they go, the earliest places first."""
    share, extra = divmod(layers, places)
    return [share + 1] * extra + [share] * (places - extra)


def stage_layers(spec: RunSpec, stage: int) -> tuple[int, ...]:
    """Indices of the layers of one stage; with interleaving every ``pipeline``-th chunk."""
    sizes = chunk_sizes(spec)
    starts = [sum(sizes[:chunk]) for chunk in range(len(sizes))]
    own = range(stage, len(sizes), spec.parallel.pipeline)
    return tuple(layer for chunk in own for layer in range(starts[chunk], starts[chunk] + sizes[chunk]))


def in_flight(spec: RunSpec, stage: int) -> Fraction:
    """Micro-batches whose activations a stage holds at once, in units of all its layers.

    1F1B: ``min(m, p - r)``. GPipe: all. Interleaved: the warm-up of Megatron-core ``get_pp_rank_microbatches``,
    ``2 (p - r - 1) + (v - 1) g`` chunks, and the one that follows; a round ``g`` has ``p`` micro-batches unless
    ``--microbatch-group-size-per-virtual-pipeline-stage`` says otherwise, and with
    ``--overlap-moe-expert-parallel-comm`` one more chunk is run ahead. Zero bubble: ZB-H1, the memory of 1F1B's first
    stage on every stage (arXiv:2401.10241, table 2). DualPipe: ``p + 1`` stages' worth, of the two that a rank runs.
    """
    parallel, micro_batches = spec.parallel, spec.gradient_accumulation
    stages, chunks = parallel.pipeline, parallel.virtual_pipeline
    if parallel.schedule == "gpipe":
        return Fraction(micro_batches)
    if parallel.schedule == "zero_bubble":
        return Fraction(min(micro_batches, stages))
    if parallel.schedule == "dualpipe":
        return min(Fraction(micro_batches), Fraction(stages + 1, 2))
    if chunks > 1:
        group = spec.pipeline_round
        ahead = 1 if spec.backend.argument("overlap-moe-expert-parallel-comm") else 0
        warm_up = 2 * (stages - stage - 1) + (chunks - 1) * group + ahead
        return _chunks_in_flight(spec, stage, min(warm_up + 1, micro_batches * chunks), group)
    return Fraction(min(micro_batches, stages - stage))


def _chunks_in_flight(spec: RunSpec, stage: int, forwards: int, group: int) -> Fraction:
    """The layers of the first so many forward passes, which take the chunks in turn, a round of micro-batches each."""
    own = chunk_sizes(spec)[stage :: spec.parallel.pipeline]
    run = [own[number // group % len(own)] for number in range(forwards)]
    return Fraction(sum(run), sum(own)) if sum(own) else Fraction(forwards, len(own))


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Whole layers on every stage, in as many equal chunks as the schedule asks for."""
    if spec.parallel.pipeline == 1:
        yield from _without_stages(spec)
        return
    if not _shares_out(spec):
        yield _uneven(spec)
    elif not _whole_chunks(spec):
        yield _uneven_chunks(spec)
    yield from _schedule(spec)


def _without_stages(spec: RunSpec) -> Iterator[ConfigError]:
    """Settings of a pipeline that does not exist."""
    idle = {"virtual_pipeline": 1, "first_stage_layers": None, "last_stage_layers": None, "schedule": "1f1b"}
    for name, neutral in idle.items():
        value, path = getattr(spec.parallel, name), f"parallel.{name}"
        if value != neutral:
            rule = "it belongs to a pipeline, and parallel.pipeline is 1"
            yield ConfigError(path, value, rule, [edit.override(path, neutral), "parallel.pipeline=2"])


def _shares_out(spec: RunSpec) -> bool:
    """True if the stages without a size of their own get equal numbers of layers, at least one each."""
    named = [size for size in (spec.parallel.first_stage_layers, spec.parallel.last_stage_layers) if size is not None]
    left, stages = layers_counted(spec) - sum(named), spec.parallel.pipeline - len(named)
    if stages == 0:
        return left == 0
    return left >= stages and left % stages == 0


def layers_counted(spec: RunSpec) -> int:
    """Layers that stages share, with the embedding and the loss where they count for one."""
    return spec.model.num_hidden_layers + sum(_counted_as_layers(spec))


def _whole_chunks(spec: RunSpec) -> bool:
    parallel, layers = spec.parallel, layers_counted(spec)
    named = [size for size in (parallel.first_stage_layers, parallel.last_stage_layers) if size is not None]
    stages = parallel.pipeline - len(named)
    sizes = [*named, (layers - sum(named)) // stages] if stages else named
    return all(size % parallel.virtual_pipeline == 0 for size in sizes)


def _uneven(spec: RunSpec) -> ConfigError:
    layers, stages = spec.model.num_hidden_layers, spec.parallel.pipeline
    first, last = spec.parallel.first_stage_layers, spec.parallel.last_stage_layers
    legal = nearest.nearest(spec, "parallel.pipeline", nearest.divisors(layers), _shares_out)
    if first is None and last is None:
        rule = f"pipeline stages must divide the {layers} layers, or the first and last stage have sizes of their own"
        ends = range(1, layers)
        own = nearest.nearest(spec, "parallel.first_stage_layers", ends, _shares_out, limit=1)
        return ConfigError("parallel.pipeline", stages, rule, chain(legal, own))
    path = "parallel.first_stage_layers" if first is not None else "parallel.last_stage_layers"
    rule = f"what the first and last stage leave of the {layers} layers must be shared equally by the other stages"
    sizes = nearest.nearest(spec, path, range(1, layers), _shares_out, limit=2)
    return ConfigError(path, first if first is not None else last, rule, chain(sizes, legal))


def _uneven_chunks(spec: RunSpec) -> ConfigError:
    chunks, path = spec.parallel.virtual_pipeline, "parallel.virtual_pipeline"
    whole = edit.changed(spec, path, 1)
    per_stage = sorted({len(stage_layers(whole, stage)) for stage in range(spec.parallel.pipeline)})
    rule = f"model chunks must divide the {' and '.join(map(str, per_stage))} layers of a stage"
    return ConfigError(path, chunks, rule, nearest.nearest(spec, path, nearest.divisors(max(per_stage)), _whole_chunks))


def _schedule(spec: RunSpec) -> Iterator[ConfigError]:
    schedule, chunks = spec.parallel.schedule, spec.parallel.virtual_pipeline
    if schedule == "interleaved" and chunks == 1:
        per_stage = spec.model.num_hidden_layers // spec.parallel.pipeline
        legal = nearest.nearest(spec, "parallel.virtual_pipeline", nearest.divisors(per_stage), _whole_chunks, limit=2)
        rule = "the interleaved schedule needs several model chunks on each stage (parallel.virtual_pipeline)"
        yield ConfigError("parallel.schedule", schedule, rule, chain(legal, ("parallel.schedule=1f1b",)))
    if schedule not in ("1f1b", "interleaved") and chunks > 1:
        rule = f"several model chunks on a stage are the interleaved schedule, not {schedule}"
        way_out = ["parallel.schedule=interleaved", "parallel.virtual_pipeline=1"]
        yield ConfigError("parallel.virtual_pipeline", chunks, rule, way_out)
    elif chunks > 1 and not _full_rounds(spec, spec.gradient_accumulation):
        yield _broken_rounds(spec)


def _full_rounds(spec: RunSpec, count: int) -> bool:
    """Rounds of the pipeline's length at least, the last one too (Megatron-core ``pipeline_parallel/schedules.py``)."""
    stages, size = spec.parallel.pipeline, spec.pipeline_round
    return stages <= size <= count and (count % size == 0 or count % size >= stages)


def _broken_rounds(spec: RunSpec) -> ConfigError:
    """Interleaving sends micro-batches in groups of the pipeline's length (arXiv:2104.04473, section 2.2)."""
    stages, count, size = spec.parallel.pipeline, spec.gradient_accumulation, spec.pipeline_round
    needed = (
        f"a multiple of pipeline {stages} micro-batches"
        if size == stages
        else f"rounds of {size} micro-batches (--{ROUND}), of pipeline {stages} at least and so the last one"
    )
    rule = f"the interleaved schedule needs {needed}, and an optimizer step has {count}"
    counts = sorted(nearest.multiples_around(count, size), key=lambda other: abs(other - count))
    legal = (batches_typed(spec, other, spec.micro_batch_size) for other in counts if _full_rounds(spec, other))
    way_out = chain(islice(legal, 2), ("parallel.virtual_pipeline=1",))
    return ConfigError("train.global_batch_size", spec.global_batch_size, rule, way_out)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """A pipeline that is never full: the idle share of 1F1B is (p-1)/(m v + p-1) (arXiv:2104.04473, section 2.2)."""
    stages, count = spec.parallel.pipeline, spec.gradient_accumulation
    if count >= stages:
        return
    idle = (stages - 1) / (count * spec.parallel.virtual_pipeline + stages - 1)
    rule = (
        f"an optimizer step has {count} micro-batch{'es' if count > 1 else ''} for {stages} pipeline stages, so each"
        f" stage is idle {idle:.0%} of the time: (p-1)/(m+p-1)"
    )
    way_out = [batches_typed(spec, 4 * stages, spec.micro_batch_size)]
    yield ConfigError("train.global_batch_size", spec.global_batch_size, rule, way_out)
