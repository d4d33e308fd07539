"""The stages of a pipeline: the layers of each, and the micro-batches that it holds at once.

The layers are cut into ``pipeline x virtual_pipeline`` chunks (:func:`chunk_sizes`), and stage ``r`` has every
``pipeline``-th chunk starting with the ``r``-th, or, where the schedule folds the model, the ``r``-th from either end
(:func:`chunks_of`). The schedule decides how many micro-batches' activations a stage holds at once
(:func:`in_flight`). The unit is all its layers, so that interleaving, in which a micro-batch is held in some chunks
only, gives a fraction. The rules ensure that layers divide as the schedule needs; the worker and the translation read
the same sizes from here.

Most stages of a long pipeline are equal, and most layouts of a search share their stages: results that depend only on
a :class:`Cut` or a :class:`Flow` are cached by these, and :func:`alike` says which stages have to be counted.
"""

import re
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from launcher.estimate.rank.counts import kinds_of
from launcher.estimate.rank.family import Family
from launcher.spec import ModelSpec, RunSpec

SPLIT = frozenset(("zero_bubble", "zbv", "dualpipe_v"))
"""Schedules that run the weights' part of a backward pass separately from the inputs' part."""

FOLDED = frozenset(("zbv", "dualpipe_v"))
"""Schedules whose stage ``r`` has the ``r``-th chunk from either end of the model."""


_MOST_LETTERS = 100_000  # Longest layout, in letters: more layers than any model has.


class Layout(NamedTuple):
    """The layers of each model chunk, in model order, as ``--pipeline-model-parallel-layout`` gives them.

    ``E`` is the embedding, ``t`` a layer, ``m`` a multi-token prediction layer, ``L`` the loss; ``|`` ends a model
    chunk, ``t*3`` is ``ttt`` and ``(tt|)*2`` is ``tt|tt|`` (``core/transformer/pipeline_parallel_layer_layout.py``).
    """

    letters: str  # The whole layout, without chunk ends.
    sizes: tuple[int, ...]  # Layers of each chunk.
    predicted: tuple[int, ...]  # Multi-token prediction layers of each chunk.


@lru_cache(maxsize=256)
def read_layout(text: str) -> Layout:
    """Parse a layout; raises ValueError with the rule that it breaks, as the end of a sentence."""
    text = text.replace(",", "").replace(" ", "")
    if any(len(number) > len(str(_MOST_LETTERS)) for number in re.findall(r"\d+", text)):
        raise ValueError(f"a layout has at most {_MOST_LETTERS} letters")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        if sum(len(part) * int(times) for part, times in re.findall(pattern, text)) > _MOST_LETTERS:
            raise ValueError(f"a layout has at most {_MOST_LETTERS} letters")
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text)
    if wrong := sorted(set(text) - set("EtmL|")):
        raise ValueError(
            f"its letters are E (embedding), t (layer), m (multi-token prediction), L (loss), not {wrong[0]}"
        )
    chunks = text.split("|")
    return Layout(
        text.replace("|", ""), tuple(chunk.count("t") for chunk in chunks), tuple(chunk.count("m") for chunk in chunks)
    )


def fitting_layout(parts: tuple[str, ...], chunks: int) -> Layout | None:
    """The layout if it has ``chunks`` model chunks; None without one, or where a rule refuses it."""
    try:
        found = read_layout("|".join(parts)) if parts else None
    except ValueError:
        return None
    return found if found is not None and len(found.sizes) == chunks else None


def even_layout(layers: int, predicted: int, chunks: int) -> list[str]:
    """The chunks of a layout that distributes layers evenly; the earliest chunks take the remainder."""
    share, extra = divmod(layers, chunks)
    parts = ["t" * (share + (1 if place < extra else 0)) for place in range(chunks)]
    return [f"E{parts[0]}", *parts[1:-1], f"{parts[-1]}{'m' * predicted}L"]


class Cut(NamedTuple):
    """All that determines the layers of each stage."""

    layers: int  # Layers of the model.
    stages: int  # Pipeline stages.
    chunks: int  # Model chunks per stage.
    first: int | None  # Layers of the first stage, if set explicitly.
    last: int | None  # Layers of the last stage, if set explicitly.
    embedding: int  # 1 if the embedding counts as a layer, else 0.
    loss: int  # 1 if the loss counts as a layer, else 0.
    folded: bool  # True if each stage has a chunk and the one as far from the other end.
    predicted: int = 0  # Multi-token prediction layers.
    layout: Layout | None = None  # The contents of each chunk, if given chunk by chunk.

    @property
    def counted(self) -> int:
        """Layers that the stages share, including the embedding and the loss where they count as one."""
        return self.layers + self.embedding + self.loss

    def ends(self, stage: int) -> tuple[bool, bool]:
        """True if a stage has the embedding, and True if it has the head."""
        return stage == 0, stage == (0 if self.folded else self.stages - 1)


class Flow(NamedTuple):
    """All that determines how many micro-batches a stage holds at once."""

    cut: Cut  # The layers.
    schedule: str  # The order of the passes.
    micro_batches: int  # Micro-batches of an optimizer step.
    group: int  # Micro-batches that pass an interleaved chunk before the next chunk runs.
    ahead: int  # Chunks that run ahead of the schedule.


def cut_of(spec: RunSpec) -> Cut:
    """The cut of a run's layers.

    The embedding counts as a layer with ``--account-for-embedding-in-pipeline-split``, and the loss with
    ``--account-for-loss-in-pipeline-split`` (Megatron-core ``transformer_block.py``, ``get_num_layers_to_build``).
    """
    parallel, argument = spec.parallel, spec.backend.argument
    counts_ends = bool(spec.backend.extra)  # Skips two look-ups: few runs pass arguments to their engine.
    return Cut(
        spec.model.num_hidden_layers,
        parallel.pipeline,
        parallel.virtual_pipeline,
        parallel.first_stage_layers,
        parallel.last_stage_layers,
        1 if counts_ends and argument("account-for-embedding-in-pipeline-split") else 0,
        1 if counts_ends and argument("account-for-loss-in-pipeline-split") else 0,
        parallel.schedule in FOLDED and parallel.virtual_pipeline == 2,
        spec.model.mtp_layers,
        fitting_layout(parallel.layout, parallel.pipeline * parallel.virtual_pipeline),
    )


def flow_of(spec: RunSpec) -> Flow:
    """The flow of a run's micro-batches."""
    ahead = 1 if spec.backend.argument("overlap-moe-expert-parallel-comm") else 0
    return Flow(cut_of(spec), spec.parallel.schedule, spec.gradient_accumulation, spec.pipeline_round, ahead)


def chunks_of(cut: Cut, stage: int) -> tuple[int, ...]:
    """Indices of the model chunks of a stage, in model order."""
    if cut.folded:
        return stage, 2 * cut.stages - 1 - stage
    return tuple(range(stage, cut.stages * cut.chunks, cut.stages))


def chunk_sizes(spec: RunSpec) -> tuple[int, ...]:
    """Layers of each of the ``pipeline x virtual_pipeline`` model chunks in model order.

    The remainder of layers goes to the earliest chunks. Explicit sizes of the first and last stage are distributed over
    their chunks.
    """
    return _chunk_sizes(cut_of(spec))


@lru_cache(maxsize=1024)
def _chunk_sizes(cut: Cut) -> tuple[int, ...]:
    if cut.layout is not None:
        return cut.layout.sizes
    sizes: list[int | None] = [None] * (cut.stages * cut.chunks)
    for stage, size in ((0, cut.first), (cut.stages - 1, cut.last)):
        if size is not None:
            for chunk, share in zip(chunks_of(cut, stage), _distribute(size, cut.chunks), strict=True):
                sizes[chunk] = share
    left = max(0, cut.counted - sum(size for size in sizes if size is not None))
    shares = iter(_distribute(left, max(1, sizes.count(None))))
    result = [next(shares) if size is None else size for size in sizes]
    result[0] -= cut.embedding
    result[-1] -= cut.loss
    return tuple(result)


def _distribute(layers: int, places: int) -> list[int]:
    """Distribute layers evenly; the first places take the remainder."""
    share, extra = divmod(layers, places)
    return [share + 1] * extra + [share] * (places - extra)


@lru_cache(maxsize=1024)
def _stage_layers(cut: Cut) -> tuple[tuple[int, ...], ...]:
    starts = (0, *accumulate(_chunk_sizes(cut)))
    return tuple(
        tuple(layer for chunk in chunks_of(cut, stage) for layer in range(starts[chunk], starts[chunk + 1]))
        for stage in range(cut.stages)
    )


def rank_layers(cut: Cut, stage: int) -> tuple[int, ...]:
    """Indices of the layers that a rank of a stage runs, in all its chunks."""
    return _stage_layers(cut)[stage]


def predicted_layers(cut: Cut, stage: int) -> int:
    """Multi-token prediction layers that a stage runs: those of its layout, else all on the last stage."""
    if cut.layout is not None:
        return sum(cut.layout.predicted[stage :: cut.stages])
    return cut.predicted if stage == cut.stages - 1 else 0


def predicted_in_flight(flow: Flow, stage: int) -> Fraction:
    """Micro-batches whose activations of multi-token prediction layers a stage holds at once, in its last chunk."""
    chunks = flow.cut.chunks
    if chunks == 1:
        return in_flight(flow, stage)
    rounds, rest = divmod(forwards(flow, stage), flow.group * chunks)
    return Fraction(rounds * flow.group + max(0, rest - flow.group * (chunks - 1)))


def forwards(flow: Flow, stage: int) -> int:
    """Forward passes of chunks that an interleaved stage runs before its first backward pass."""
    chunks = flow.cut.chunks
    warm_up = 2 * (flow.cut.stages - stage - 1) + (chunks - 1) * flow.group + flow.ahead
    return min(warm_up + 1, flow.micro_batches * chunks)


def in_flight(flow: Flow, stage: int) -> Fraction:
    """Micro-batches whose activations a stage holds at once, in units of all its layers.

    1F1B: ``min(m, p - r)``. GPipe: all. Interleaved: the warm-up of Megatron-core ``get_pp_rank_microbatches``,
    ``2 (p - r - 1) + (v - 1) g`` chunks, and the one that follows; a round ``g`` has ``p`` micro-batches unless
    ``--microbatch-group-size-per-virtual-pipeline-stage`` is set, and ``--overlap-moe-expert-parallel-comm`` runs one
    more chunk ahead. A split backward pass holds a micro-batch until its weights' part has run, and by torch's tables
    (``torch/distributed/pipelining/schedules.py``) a stage with ``v`` chunks holds at once: zero bubble
    ``(v - 1) g + p`` chunks, so with one chunk every stage has the memory of 1F1B's first stage (ZB-H1,
    arXiv:2401.10241, table 2); ZBV ``2 p``, or ``m + r + 1`` if that is less; DualPipeV ``2 p + 1``.
    """
    stages, chunks, micro_batches = flow.cut.stages, flow.cut.chunks, flow.micro_batches
    if flow.schedule == "gpipe":
        return Fraction(micro_batches)
    if flow.schedule in SPLIT:
        most = {
            "zero_bubble": (chunks - 1) * flow.group + stages,
            "zbv": min(2 * stages, micro_batches + stage + 1),
            "dualpipe_v": 2 * stages + 1,
        }[flow.schedule]
        return Fraction(min(micro_batches * chunks, most), chunks)
    if chunks > 1:
        return _chunks_in_flight(flow.cut, stage, forwards(flow, stage), flow.group)
    return Fraction(min(micro_batches, stages - stage))


@lru_cache(maxsize=8192)
def _chunks_in_flight(cut: Cut, stage: int, forwards: int, group: int) -> Fraction:
    """The share of a stage's layers in its first ``forwards`` passes, which take chunks in turn, a round in each."""
    own = [_chunk_sizes(cut)[chunk] for chunk in chunks_of(cut, stage)]
    run = [own[number // group % len(own)] for number in range(forwards)]
    return Fraction(sum(run), sum(own)) if sum(own) else Fraction(forwards, len(own))


@lru_cache(maxsize=1024)
def alike(family: Family, model: ModelSpec, cut: Cut, *, first_apart: bool) -> tuple[int, ...]:
    """For each stage, the first stage with the same kinds of layers in the same order and the same model ends."""
    firsts: dict[object, int] = {}
    return tuple(
        firsts.setdefault(
            (kinds_of(family, model, layers, first_apart=first_apart), cut.ends(stage), predicted_layers(cut, stage)),
            stage,
        )
        for stage, layers in enumerate(_stage_layers(cut))
    )


@lru_cache(maxsize=4096)
def fullest_stages(family: Family, model: ModelSpec, flow: Flow) -> tuple[int, ...]:
    """The outer stages, and among inner ones with equal layers the first with the most micro-batches in flight.

    An inner stage's place matters for nothing else: terms only ask whether it is the first. Where backward passes are
    split, the chunks that wait for the weights' part matter as well: then all stages are returned.
    """
    if flow.schedule in SPLIT:
        return tuple(range(flow.cut.stages))
    found: dict[object, int] = {}
    for stage in range(flow.cut.stages):
        outer = stage == 0 or any(flow.cut.ends(stage)) or predicted_layers(flow.cut, stage)
        kinds = kinds_of(family, model, rank_layers(flow.cut, stage), first_apart=True)
        key = stage if outer else frozenset((name, count) for name, _, count in kinds)
        if key not in found or in_flight(flow, found[key]) < in_flight(flow, stage):
            found[key] = stage
    return tuple(found.values())
