"""Pipeline parallelism: consecutive layers on consecutive stages, several micro-batches in flight."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from launcher.rank import RankView
from launcher.spec import RunSpec


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
    return replace(
        view,
        layers=layers,
        embedding=view.stage == 0 or (mirrored and view.stage == last),
        head=view.stage == last or (mirrored and view.stage == 0),
        in_flight=view.in_flight * in_flight(spec, view.stage),
    )


def chunk_sizes(spec: RunSpec) -> tuple[int, ...]:
    """Layers of each of the ``pipeline x virtual_pipeline`` model chunks in the order of the model.

    Layers that do not divide go to the earliest chunks, after the sizes that the first and the last stage have by name.
    """
    parallel = spec.parallel
    count = parallel.pipeline * parallel.virtual_pipeline
    sizes: list[int | None] = [None] * count
    if parallel.first_stage_layers is not None:
        sizes[0] = parallel.first_stage_layers
    if parallel.last_stage_layers is not None:
        sizes[-1] = parallel.last_stage_layers
    left = max(0, spec.model.num_hidden_layers - sum(size for size in sizes if size is not None))
    share, extra = divmod(left, max(1, sizes.count(None)))
    result = []
    for size in sizes:
        result.append(size if size is not None else share + (extra > 0))
        extra -= size is None
    return tuple(result)


def stage_layers(spec: RunSpec, stage: int) -> tuple[int, ...]:
    """Indices of the layers of one stage; with interleaving every ``pipeline``-th chunk."""
    sizes = chunk_sizes(spec)
    starts = [sum(sizes[:chunk]) for chunk in range(len(sizes))]
    own = range(stage, len(sizes), spec.parallel.pipeline)
    return tuple(layer for chunk in own for layer in range(starts[chunk], starts[chunk] + sizes[chunk]))


def in_flight(spec: RunSpec, stage: int) -> Fraction:
    """Micro-batches whose activations a stage holds at once, in units of all its layers.

    1F1B: ``min(m, p - r)``. GPipe: all. Interleaved: the warm-up of Megatron-core ``get_pp_rank_microbatches``,
    ``2 (p - r - 1) + (v - 1) p`` chunks, and the one that follows. Zero bubble: ZB-H1, the memory of 1F1B's first stage
    on every stage (arXiv:2401.10241, table 2). DualPipe: ``p + 1`` stages' worth, of the two that a rank runs.
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
        warm_up = 2 * (stages - stage - 1) + (chunks - 1) * stages
        return Fraction(min(warm_up + 1, micro_batches * chunks), chunks)
    return Fraction(min(micro_batches, stages - stage))
