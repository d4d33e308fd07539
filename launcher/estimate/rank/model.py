"""All that one rank holds: elements of its weights and their shards, tokens, and bytes that a block saves.

:func:`rank_model` combines the shares that the strategies leave (:class:`RankView`), the family's weights and saved
tensors, the backend's number formats and traits, and an adapter. ``memory`` and the backends' overheads read the
result; neither looks up a family or a strategy again.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil, lcm
from typing import Any, Protocol, TypedDict

from launcher.base.frozen import dataclass
from launcher.estimate.rank import adapters, counts
from launcher.estimate.rank.counts import EqualBlocks, RankCounts, block_weights, count_rank, kinds_of, names_of, padded
from launcher.estimate.rank.engine import EngineTraits, Execution
from launcher.estimate.rank.family import Family
from launcher.estimate.rank.formats import Dtypes
from launcher.estimate.rank.recomputed import BLOCK, kept, layers_moved, method, offloaded, recomputed, share_of_weights
from launcher.estimate.rank.shards import WeightCounts, shard_rule
from launcher.estimate.rank.stages import cut_of
from launcher.estimate.rank.tensors import SavedTensor, Share, Weight
from launcher.estimate.rank.view import RankView, Strategy, rounded_up
from launcher.spec import AdapterSpec, ModelSpec, RunSpec

NF4_BITS = {False: 4 + Fraction(32, 64), True: 4 + Fraction(8, 64) + Fraction(32, 64 * 256)}
"""Bits of a parameter in 4-bit NormalFloat: one fp32 constant per 64, or with double quantisation 8 bits per 64 and one
fp32 constant per 256 of those (QLoRA, arXiv:2305.14314, section 3)."""


def code_bits(adapter: AdapterSpec) -> int | Fraction:
    """Bits of a quantised weight with its block constants; the row scales of 8-bit weights are counted separately."""
    return NF4_BITS[adapter.double_quant] if adapter.bits == 4 else adapter.bits


class Backend(Protocol):
    """What the memory and speed models ask of a backend."""

    @abstractmethod
    def dtypes(self, spec: RunSpec) -> Dtypes:
        """The number formats that ``precision=`` means for it."""

    @abstractmethod
    def engine(self, spec: RunSpec) -> EngineTraits:
        """The traits of its implementation."""

    def execution(self, spec: RunSpec) -> Execution | None:
        """How it executes a step; None where that is unknown, and so its speed."""
        return None


class Parts(TypedDict):
    """Family, strategies and backend of a run: arguments of the memory and speed models."""

    family: Family
    strategies: Iterable[Strategy]
    backend: Any  # Also the stand-in of a measured framework that is never launched.


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """Equal blocks of one rank."""

    name: str  # The family's name for the kind.
    count: int  # How many of them the rank holds.
    elements: WeightCounts  # Elements of one.
    # Tensors that the forward pass of one saves for one micro-batch when all of it is trained.
    saved_if_trained: tuple[SavedTensor, ...]
    saved: tuple[SavedTensor, ...]  # Tensors that it saves in this run.
    backward_extra: tuple[SavedTensor, ...]  # Tensors that its backward pass adds at its peak.
    first_norm_backward: tuple[SavedTensor, ...]  # Tensors alive at the end of its backward pass, in its first norm.
    # The parts that backward recomputes: none, the whole block, or modules (``rank.recomputed``).
    recomputed: tuple[str, ...]
    kept: tuple[SavedTensor, ...]  # Tensors kept until the backward pass where modules are recomputed.
    recomputed_share: Fraction  # The share of its matrices in the recomputed modules.
    outside: tuple[SavedTensor, ...] = ()  # Tensors that it saves outside the recomputed part.
    offloaded: tuple[SavedTensor, ...] = ()  # Kept tensors that wait in host memory.
    linears: int = 0  # Elements of the quantised linear layers of one: all matrices but the router.

    def repeats(self, module: str) -> bool:
        """True if backward recomputes this module, or the whole block."""
        return BLOCK in self.recomputed or module in self.recomputed


@dataclass(frozen=True, kw_only=True)
class RankModel:
    """The contents of one rank of a pipeline stage."""

    spec: RunSpec  # The run.
    view: RankView  # The rank's shares.
    dtypes: Dtypes  # The number formats that the precision means for the backend.
    engine: EngineTraits  # The traits of the implementation.
    family: Family  # The family of the model.
    blocks: tuple[BlockKind, ...]  # The kinds of blocks that it holds.
    after_blocks: tuple[SavedTensor, ...]  # Tensors saved after the last block, where the rank has the head.
    counts: RankCounts  # The elements of all its parameters.
    tokens: int  # Tokens of one micro-batch on this rank.
    vocabulary: int  # The padded vocabulary, before it is split.

    @property
    def embedding(self) -> WeightCounts:
        """Elements of the parameters before the blocks."""
        return self.counts.embedding

    @property
    def head(self) -> WeightCounts:
        """Elements of the parameters after the blocks, including a stage's own copy of a tied token embedding."""
        return self.counts.head

    @property
    def root(self) -> WeightCounts:
        """Elements of the parameters outside the blocks: embedding and head."""
        return self.counts.root

    @property
    def all_blocks(self) -> WeightCounts:
        """Elements of all blocks of the rank."""
        return self.counts.all_blocks

    @property
    def elements(self) -> WeightCounts:
        """Elements of all parameters of the rank."""
        return self.counts.everything

    @property
    def largest_block(self) -> WeightCounts:
        """Elements of the block with the most."""
        return self.counts.largest_block

    @cached_property
    def _shares_of_rows(self) -> tuple[dict[Share, int], int]:
        view = self.view
        return _shares(view.residual, view.tensor, view.expert_tensor, self.spec.model.num_experts_per_tok)

    @property
    def layers(self) -> int:
        """Number of blocks on this rank."""
        return self.counts.layers

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The index in ``blocks`` of each block's kind, in the order in which the rank runs them."""
        counts = tuple((kind.name, kind.count) for kind in self.blocks)
        if len(counts) < 2:
            return (0,) * sum(count for _, count in counts)
        return _order(names_of(self.family, self.spec.model, self.view.layers), counts)

    @property
    def last_block(self) -> BlockKind:
        """The kind of the block that the rank runs last."""
        return self.blocks[self.order[-1]]

    @cached_property
    def linears(self) -> int:
        """Elements of the quantised linear layers."""
        return sum(kind.count * kind.linears for kind in self.blocks)

    @property
    def sharded_linears(self) -> int:
        """Elements of this rank's shard of the quantised linear layers."""
        return ceil(self.linears * Fraction(self.all_blocks.parameters, self.all_blocks.whole or 1))

    @property
    def tied(self) -> bool:
        """True if the output projection shares the rank's own token embedding."""
        both = self.view.head and self.view.embedding and not cut_of(self.spec).folded
        return both and self.spec.model.tie_word_embeddings

    @property
    def cuda(self) -> bool:
        """True if the rank is a GPU."""
        return self.spec.hardware.device == "cuda"

    def compute_parameters(self, counts: WeightCounts) -> int | Fraction:
        """Parameters of a group before sharding; a quantised one counts as the fraction of an element that it takes."""
        if not counts.quantised:
            return counts.whole
        bits = code_bits(self.spec.adapter)
        return counts.whole - counts.quantised + Fraction(counts.quantised * bits, 8 * self.engine.size)

    def gathered_blocks(self, counts: WeightCounts) -> int | Fraction:
        """As :meth:`compute_parameters`, for blocks: weights of linear layers that are gathered in fp8 count half."""
        halved = self.spec.zero.quantized_weights and self.dtypes.compute == "fp8"
        return self.compute_parameters(counts) - (sum(counts.matrices) // 2 if halved else 0)

    def token_bytes(self, rows: Iterable[SavedTensor]) -> int | Fraction:
        """Exact bytes of saved rows for one token on this rank."""
        weights, denominator = self._shares_of_rows
        total = 0
        for row in rows:
            total += row.bytes * weights[row.share]
        whole, rest = divmod(total, denominator)
        return Fraction(total, denominator) if rest else whole


@lru_cache(maxsize=1024)
def _order(names: tuple[str, ...], counts: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    left = [count for _, count in counts]
    found = []
    for name in names:
        place = next((place for place, (other, _) in enumerate(counts) if other == name and left[place]), None)
        if place is not None:
            left[place] -= 1
            found.append(place)
    return (*found, *(place for place, count in enumerate(left) for _ in range(count)))


@lru_cache(maxsize=1024)
def _shares(
    residual: Fraction, tensor: Fraction, expert_tensor: Fraction, choices: int
) -> tuple[dict[Share, int], int]:
    """A rank's shares of rows as integers over a common denominator, so that sums of bytes are exact."""
    shares: dict[Share, Fraction] = {
        "token": Fraction(1),
        "residual": residual,
        "tensor": tensor,
        "routed": choices * tensor / expert_tensor,
        "routed_tensor": choices * tensor,
    }
    denominator = lcm(*(share.denominator for share in shares.values()))
    return {name: int(share * denominator) for name, share in shares.items()}, denominator


def rank_model(spec: RunSpec, view: RankView, family: Family, dtypes: Dtypes, engine: EngineTraits) -> RankModel:
    """Count a rank's weights, its tokens, and the tensors that its blocks save."""
    model, ends = spec.model, (view.embedding, view.head)
    vocabulary = padded(model.vocab_size, engine.vocabulary_multiple)
    kinds = kinds_of(family, model, view.layers, first_apart=spec.adapter.name != "none")
    rule, apart = shard_rule(view, engine), cut_of(spec).folded
    counts = count_rank(family, model, spec.adapter, vocabulary, kinds, ends, rule, view.predicted, apart=apart)
    return RankModel(
        spec=spec,
        view=view,
        dtypes=dtypes,
        engine=engine,
        family=family,
        blocks=tuple(_kinds(spec, family, engine, view, counts.blocks)),
        after_blocks=_after_blocks(family, model, engine, spec) if view.head else (),
        counts=counts,
        tokens=spec.sequences_at_once * rounded_up(spec.sequence_length, view.tokens),
        vocabulary=vocabulary,
    )


def _after_blocks(family: Family, model: ModelSpec, engine: EngineTraits, spec: RunSpec) -> tuple[SavedTensor, ...]:
    rows = adapters.after_blocks(_rows_after_blocks(family, model, engine), spec)
    return (*rows, *counts.joined_outputs(model, engine)) if model.mtp_layers else rows


def _kinds(
    spec: RunSpec, family: Family, engine: EngineTraits, view: RankView, blocks: Sequence[EqualBlocks]
) -> Iterator[BlockKind]:
    if engine.quantised is None:
        yield from _alike(spec, family, engine, view, blocks)
        return
    first, last = engine.quantised.ends
    ahead = [layer for layer in view.layers if layer < first]
    behind = [layer for layer in view.layers if first <= layer and layer >= spec.model.num_hidden_layers - last]
    apart = [family.kind(spec.model, layer) for layer in (*ahead, *behind)]
    middle = [replace(alike, count=alike.count - apart.count(alike.name)) for alike in blocks]
    plain = replace(engine, quantised=None)
    yield from _alike(spec, family, plain, view, _at(spec, family, blocks, ahead))
    yield from _alike(spec, family, engine, view, [alike for alike in middle if alike.count])
    yield from _alike(spec, family, plain, view, _at(spec, family, blocks, behind))


def _at(spec: RunSpec, family: Family, blocks: Sequence[EqualBlocks], layers: Sequence[int]) -> list[EqualBlocks]:
    names = [family.kind(spec.model, layer) for layer in layers]
    return [replace(alike, count=names.count(alike.name)) for alike in blocks if alike.name in names]


def _alike(
    spec: RunSpec, family: Family, engine: EngineTraits, view: RankView, blocks: Sequence[EqualBlocks]
) -> Iterator[BlockKind]:
    """The kinds of equal blocks; if only the first ones are recomputed, these are separate kinds and come first.

    Megatron-core recomputes the first layers of each model chunk: there the bytes of all blocks are averaged.
    """
    parts, first = recomputed(spec), spec.checkpointing.layers
    moves = spec.checkpointing.offload
    if engine.library == "megatron":  # Its modules are parts of a block that ``checkpoint_per_token`` looks up.
        parts, first = (BLOCK,) if parts else (), layers_moved(spec)
    elif method(spec.checkpointing, engine) != "block":
        first = None
    if first is None or not (parts or moves):
        yield from (_kind(spec, family, engine, alike, parts, moves=moves) for alike in blocks)
        return
    ahead = kinds_of(family, spec.model, view.layers[:first], first_apart=spec.adapter.name != "none")
    counts = {(name, layer): count for name, layer, count in ahead}
    for own, sign in ((parts, 1), ((), 0)):
        for alike in blocks:
            reached = counts.get((alike.name, alike.layer), 0)
            if count := reached if sign else alike.count - reached:
                yield _kind(spec, family, engine, replace(alike, count=count), own, moves=moves and sign > 0)


def _kind(
    spec: RunSpec, family: Family, engine: EngineTraits, alike: EqualBlocks, parts: tuple[str, ...], *, moves: bool
) -> BlockKind:
    saved_if_trained, saved, backward_extra, first_norm_backward = _rows(
        family,
        spec.model,
        spec.adapter,
        alike.layer,
        engine,
        keeps_products=spec.checkpointing.mode == "selective" and BLOCK in parts,
        splits_stream=spec.parallel.sequence and spec.parallel.tensor > 1,
    )
    outside: tuple[SavedTensor, ...] = ()
    router = spec.model.num_experts * spec.model.hidden_size if alike.elements.expert else 0
    if alike.name == counts.FURTHER:
        outside, saved = counts.further_outside(spec.model, engine), counts.further_saved(spec.model, engine, saved)
    return BlockKind(
        name=alike.name,
        count=alike.count,
        elements=alike.elements,
        saved_if_trained=saved_if_trained,
        saved=saved,
        backward_extra=backward_extra,
        first_norm_backward=first_norm_backward,
        recomputed=parts,
        kept=tuple(kept(saved, parts, spec.model, engine)) if parts and BLOCK not in parts else (),
        recomputed_share=share_of_weights(family, spec.model, alike.layer, parts) if parts else Fraction(),
        outside=outside,
        offloaded=tuple(offloaded(spec, engine, saved, parts)) if moves else (),
        linears=sum(alike.elements.matrices) - router if engine.quantised is not None else 0,
    )


type _Rows = tuple[SavedTensor, ...]


@lru_cache(maxsize=1024)
def _rows(
    family: Family,
    model: ModelSpec,
    adapter: AdapterSpec,
    layer: int,
    engine: EngineTraits,
    *,
    keeps_products: bool,
    splits_stream: bool,
) -> tuple[_Rows, _Rows, _Rows, _Rows]:
    """The saved rows of a :class:`BlockKind`, in the order of its attributes."""
    block, first_norm_backward = block_weights(family, model, layer), tuple(family.first_norm_backward(model, engine))
    saved_if_trained = tuple(family.saved(model, layer, engine))
    backward_extra = tuple(family.backward_extra(model, layer, engine))
    first = layer == 0 and not adapters.trains(family.embedding(model, model.vocab_size), adapter)
    saved = adapters.saved(saved_if_trained, block, adapter, engine, family.traits, first=first)
    saved = adapters.rounded(saved, block, adapter, engine, whole=saved_if_trained, first=first)
    backward_extra = adapters.backward_extra(backward_extra, saved_if_trained, block, adapter)
    if keeps_products:
        saved = (*saved, *_kept_products(block, model, adapter, engine, splits_stream=splits_stream))
    return saved_if_trained, saved, backward_extra, first_norm_backward


@lru_cache(maxsize=1024)
def _rows_after_blocks(family: Family, model: ModelSpec, engine: EngineTraits) -> _Rows:
    return tuple(family.after_blocks(model, engine))


def _kept_products(
    block: Sequence[Weight], model: ModelSpec, adapter: AdapterSpec, engine: EngineTraits, *, splits_stream: bool
) -> Iterator[SavedTensor]:
    """Tensors that per-operator selective checkpointing keeps: the output of every second matrix product.

    Products are counted in the order of the block's weights (``launcher/worker/model/network.py``). Not all of them are
    needed by backward: only recomputation reads the output of the MLP. They wait in the checkpoint's cache, which hands
    out each of them once, so that recomputation adds only what backward needs. An adapter adds two products to that of
    the linear layer it wraps. ``splits_stream`` is true where tensor parallel ranks split the tokens of the residual
    stream.
    """
    if engine.library != "transformers":
        return
    # The grouped products of routed experts are a different operation, which is not kept.
    linears = [weight for weight in block if len(weight.shape) == 2 and weight.split != "expert"]
    made = [product for weight in linears for product in _products_of(weight, adapter, engine)]
    if made and adapters.module(linears[-1]) == adapters.module(block[-1]):
        made[-1] = replace(made[-1], last=True)
    yield from made[::2]
    if splits_stream:
        # With sequence parallelism the sums over tensor parallel ranks are reduce-scatters, which are kept.
        row = SavedTensor("kept sum", engine.size * model.hidden_size, "residual", "cache", kept_by_selective=True)
        yield from (row, replace(row, last=True))


def _products_of(weight: Weight, adapter: AdapterSpec, engine: EngineTraits) -> Iterator[SavedTensor]:
    """The output of a linear layer, split if its rows are, and the outputs of its adapter's two products."""
    share: Share = "tensor" if weight.split == "tensor" and weight.dimension == 0 else "token"
    name, size = adapters.module(weight), engine.size
    whole = SavedTensor("kept product", size * weight.shape[0], share, "cache", kept_by_selective=True)
    yield replace(whole, output_of=name)
    if adapter.name != "none" and name in adapter.targets:
        yield replace(whole, bytes=size * adapter.rank, share="token")
        yield whole
