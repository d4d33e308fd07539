"""Buffers of FSDP2 where expert parallel ranks share the experts, as seen in traces of the live tensors.

A block's experts are a group of parameters of their own: gathered over the ranks that hold the same ones when tokens
reach them, freed behind them, and reduced before the rest of their block. Tokens are counted for even routing, as in
the traces: of the copies of tokens that the ranks of an exchange send, each gets an equal share; at worst one rank gets
all, ``e`` times as many.
"""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple

from launcher.backends.fsdp.autocast import FSDP_TRACE
from launcher.backends.fsdp.traits import reshards
from launcher.base.formula import Value
from launcher.estimate.memory.activations import (
    block_input,
    content,
    first_norm,
    fullest_in_forward,
    inside_mlp,
    places,
    running_blocks,
)
from launcher.estimate.memory.moments import BLOCK_BACKWARD, LATER_BLOCKS_BACKWARD, Moment, Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.counts import block_weights
from launcher.estimate.rank.model import BlockKind, RankModel
from launcher.estimate.rank.shards import WeightCounts
from launcher.estimate.rank.tensors import SavedTensor

_TRACE = "trace of the live tensors of fully_shard and transformers' AllToAllEP, torch 2.15 and transformers 5.23"
_FP32 = 4


class Parts(NamedTuple):
    """Elements of a block on a rank before sharding: of its own group, and of that of its experts."""

    dense: Value  # Parameters but for routed experts; one in 4 bits counts as the part of an element that it takes.
    dense_trained: int  # Those of them that get gradients.
    expert: int  # Parameters of this rank's routed experts.
    expert_trained: int  # Those of them that get gradients.


def parts(rank: RankModel, counts: WeightCounts) -> Parts:
    """The two groups of a block; an adapter leaves all experts frozen."""
    trained = counts.expert if rank.spec.adapter.name == "none" else 0
    whole = rank.compute_parameters(counts)
    return Parts(whole - counts.expert, counts.trained - trained, counts.expert, trained)


def largest(rank: RankModel) -> int:
    """Parameters of the most experts that a block has on this rank; some may have none."""
    return max(kind.elements.expert for kind in rank.blocks)


def gathers(rank: RankModel) -> int:
    """1 if several ranks hold the same experts and gather them, 0 if each expert is whole on one rank."""
    return int(rank.view.expert_states.parameters < 1)


def router_size(rank: RankModel) -> int:
    """Bytes of one of the router's weights: of softmax in fp32, or cast to the compute format."""
    return rank.engine.size if rank.family.traits.narrow_routing(rank.spec.model) else _FP32


def overheads(rank: RankModel, head: int) -> Iterator[MemoryTerm]:
    """Gathered parameters, the reductions of a block's two groups, and the instants of its backward pass.

    ``head`` are the elements of the output projection and the norm before it, if they are trained.
    """
    yield from gathered(rank)
    yield waiting_head(rank, head)
    yield from exchanged(rank)
    for moments, kind in running_blocks(rank):
        yield from block_instants(rank, kind, moments)


def gathered(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gathered parameters but for the experts of a backward pass, which some of its instants have.

    ``z (root + dense + 2 expert)`` in forward: an all-gather's output is held until the next one.
    """
    every, n, expert = [parts(rank, kind.elements) for kind in rank.blocks], gathers(rank), largest(rank)
    order, own = [every[kind] for kind in rank.order], reshards(rank.spec)
    if own:
        dense = parts(rank, fullest_in_forward(rank).elements).dense
        yield gathered_term(rank, ("forward",), "root + dense + n * expert", dense=dense, n=1 + n, expert=expert)
        yield gathered_term(rank, ("output", "loss"), "root + n * expert", n=n, expert=expert)
        yield gathered_term(rank, ("loss_backward",), "root + dense", dense=order[-1].dense)
    else:
        blocks, block = rank.compute_parameters(rank.all_blocks), max(each.dense + each.expert for each in every)
        copies = {"n": n, "expert": expert}
        yield gathered_term(rank, ("forward", "output", "loss"), "root + blocks + n * expert", blocks=blocks, **copies)
        yield gathered_term(rank, ("loss_backward", "block_backward"), "root + blocks", blocks=blocks)
        yield gathered_term(rank, ("next_block_backward",), "root + max(blocks - block, 0)", blocks=blocks, block=block)
    for moment, place in places(rank).items():
        if own or moment in ("second_layer_backward", "first_layer_backward"):
            here = order[max(place - 1, 0) : place + 1]
            blocks = sum(each.dense + (0 if own else each.expert) for each in here)
            yield gathered_term(rank, (moment,), "root + blocks", blocks=blocks)


def gathered_term(rank: RankModel, moments: tuple[Moment, ...], parameters: str, **values: Value) -> MemoryTerm:
    """The parameters that FSDP2 holds gathered at some moments: ``parameters`` counts their elements."""
    root, z = rank.compute_parameters(rank.root), rank.engine.size
    what = "gathered parameters"
    return term("gather_buffers", moments, what, f"z * ({parameters})", FSDP_TRACE, z=z, root=root, **values)


def exchanged(rank: RankModel) -> Iterator[MemoryTerm]:
    """Inside the last block's forward pass: copies of tokens on their way back, weighted and added up.

    The experts' inputs as they were received, their outputs, these as they came back, their products with the router's
    weights and the sums, both in the format of these weights, and two states of the residual stream. Of a checkpointed
    block the received inputs come beside its MLP. Parts of experts are put together before these keep anything.
    """
    choices, h, z = rank.spec.model.num_experts_per_tok, rank.spec.model.hidden_size, rank.engine.size
    what, tok = "tokens exchanged with the experts' ranks", rank.tokens
    values: dict[str, Value] = {"z_res": rank.engine.residual_size, "h": h, "tok": tok}
    values |= _copies(rank, largest(rank), 0)
    own = [row for row in rank.blocks[-1].saved if row.share.startswith("routed")]
    values["k_own"] = rank.token_bytes(own) if rank.spec.checkpointing.mode == "none" else 0
    expression = "2 * z_res * h * tok + max(z * n * expert - k_own * tok, 0)"
    yield term("temporary", ("forward",), "experts put together", expression, _TRACE, **values).at("gathering")
    if rank.spec.checkpointing.mode != "none":
        values = {"z": z, "k": choices, "h": h, "tok": tok}
        yield term("temporary", ("forward",), what, "z * k * h * tok", _TRACE, **values).at("mlp")
        return
    expression = "(2 * z_res + k * (3 * z + z_router) + z_router) * h * tok"
    values = {"z_res": rank.engine.residual_size, "z": z, "z_router": router_size(rank), "k": choices, "h": h}
    values["tok"] = tok
    yield term("temporary", ("forward",), what, expression, _TRACE, **values).at("exchange")


def waiting_head(rank: RankModel, head: int) -> MemoryTerm:
    """The unreduced gradient of the output projection, of ``head`` elements, waits for the end of the backward pass."""
    what, z = "gradient of the output projection", rank.engine.size
    return term("reduce_buffers", BLOCK_BACKWARD, what, "z * head", _TRACE, z=z, head=head)


def block_instants(rank: RankModel, kind: BlockKind, moments: Moments) -> Iterator[MemoryTerm]:
    """Instants of a block's backward pass, beside that of its MLP: experts gathered, reduced, the rest's gradients."""
    own, z, early = parts(rank, kind.elements), rank.engine.size, ["mlp", "weight gradient"]
    if own.expert:
        early += ["exchange", "expert gradients"]
    yield from weight_gradients(rank, kind, moments, "gradients of one block but its experts'", own.dense_trained)
    if own.expert:
        yield from _exchanged_gradients(rank, kind, moments)
    if own.expert and reshards(rank.spec):
        for instant in early:
            what = "gathered experts"
            yield term("gather_buffers", moments, what, "z * expert", _TRACE, z=z, expert=own.expert).at(instant)
        if gathers(rank):
            early.append("gathering")
            yield from _gathering(rank, kind, moments)
    if own.expert:
        yield from expert_gradients(rank, kind, moments)
        yield from _experts_reduction(rank, kind, moments)
        yield from _reduced_experts(rank, own, moments)
    yield from _waiting(rank, moments & LATER_BLOCKS_BACKWARD, early if own.expert else [*early, "block gradients"])


def _exchanged_gradients(rank: RankModel, kind: BlockKind, moments: Moments) -> Iterator[MemoryTerm]:
    """The gradient of the experts' outputs and of the router's weights: products in the format of these weights.

    Where that is wider, the block's gradient is cast, and so is that of the outputs, beside them where these are not
    recomputed. Recomputation has just had the inputs as received and the outputs, made and come back: ``3 z k h``.
    """
    z, z_router, instant = rank.engine.size, router_size(rank), "exchange"
    choices, h, wider = rank.spec.model.num_experts_per_tok, rank.spec.model.hidden_size, z < z_router
    yield content(rank, kind, moments, saved=_without_shared(kind)).at(instant)
    yield _shared_gradients(rank, kind, moments).at(instant)
    yield _stream_gradient(rank, moments).at(instant)
    what = "gradients of the experts' outputs"
    expression = "(z_router * (casts + 2 * k) + z * copies * k) * h * tok"
    values = {"casts": int(wider), "z_router": z_router, "k": choices, "z": z, "copies": int(wider), "h": h}
    values["tok"] = rank.tokens
    if rank.spec.checkpointing.mode != "none":
        expression = "max(z_router * (casts + 2 * k), 3 * z * k) * h * tok"
        del values["copies"]
    yield term("temporary", moments, what, expression, _TRACE, **values).at(instant)


def _without_shared(kind: BlockKind) -> list[SavedTensor]:
    """The saved tensors of a block without those of its shared experts, whose backward pass comes first."""
    return [row for row in kind.saved if row.part not in ("mlp", "activation")]


def _shared_gradients(rank: RankModel, kind: BlockKind, moments: Moments) -> MemoryTerm:
    shared = _shared_trained(rank) if parts(rank, kind.elements).expert_trained else 0
    what, z = "gradients of experts that every token meets", rank.engine.size
    return term("reduce_buffers", moments, what, "z * shared", _TRACE, z=z, shared=shared)


def _gathering(rank: RankModel, kind: BlockKind, moments: Moments) -> Iterator[MemoryTerm]:
    """The experts are gathered for the backward pass: the all-gather's output, and the parameters copied out of it.

    A checkpointed block is recomputed after that.
    """
    instant = "gathering"
    yield content(rank, kind, moments, saved=None if rank.spec.checkpointing.mode == "none" else ()).at(instant)
    yield _stream_gradient(rank, moments).at(instant)
    what, values = "experts that are being gathered", _copies(rank, kind.elements.expert, 2)
    yield term("gather_buffers", moments, what, "z * n * expert", _TRACE, **values).at(instant)


def _copies(rank: RankModel, expert: int, copies: int) -> dict[str, Value]:
    """Copies of the experts while they are gathered: one more where parts of experts are put side by side."""
    held = rank.spec.model.num_experts * rank.view.experts
    cut = int((held * rank.view.expert_states.parameters).denominator > 1)
    return {"z": rank.engine.size, "n": copies + cut, "expert": expert}


def expert_gradients(rank: RankModel, kind: BlockKind, moments: Moments) -> Iterator[MemoryTerm]:
    """The end of the experts' backward pass, all of their gradients beside them, and those of their first product.

    That is as wide as gate and up; its input, and the gradient of that, are there as well.
    """
    own, z, instant, model = parts(rank, kind.elements), rank.engine.size, "expert gradients", rank.spec.model
    read = [row for row in kind.saved if row.name == "expert inputs"]
    left = [row for row in _without_shared(kind) if row in read or not row.share.startswith("routed")]
    yield content(rank, kind, moments, saved=left).at(instant)
    yield _stream_gradient(rank, moments).at(instant)
    yield _shared_gradients(rank, kind, moments).at(instant)
    joined = [row for row in kind.saved if row.name == "expert products"] * (2 if model.gated else 1)
    what, k = "gradients of experts", rank.token_bytes([*joined, *read])
    values: dict[str, Value] = {"z": z, "trained": own.expert_trained, "k": k, "tok": rank.tokens}
    yield term("reduce_buffers", moments, what, "z * trained + k * tok", _TRACE, **values).at(instant)


def _experts_reduction(rank: RankModel, kind: BlockKind, moments: Moments) -> Iterator[MemoryTerm]:
    """The experts' gradients on the way to their shards, when what the experts saved is freed.

    First gradients and the reduction's input, then the input and the shards, which FSDP2 makes from a quotient where no
    other rank has the same experts (``foreach_reduce``, ``world_size`` 1).
    """
    own, z, z_red = parts(rank, kind.elements), rank.engine.size, rank.dtypes.size("reduce")
    left = [row for row in _without_shared(kind) if not row.share.startswith("routed")]
    there = 0 if reshards(rank.spec) else own.expert
    shared = _shared_trained(rank) if own.expert_trained else 0
    n = 1 if gathers(rank) else 2
    what = "gradients of experts and the input of their reduction"
    sizes: dict[str, tuple[str, dict[str, Value]]] = {
        "input of experts' reduction": ("z * (trained + shared - there) + z_red * trained", {}),
        "experts' reduction": ("n * z_red * trained + z_acc * shard + z * (shared - there)", {"n": n}),
    }
    for instant, (expression, values) in sizes.items():
        yield content(rank, kind, moments, saved=left).at(instant)
        yield _stream_gradient(rank, moments).at(instant)
        if "shard" in expression:
            values |= _shard(rank, own)
        values |= {"z": z, "z_red": z_red, "trained": own.expert_trained, "there": there, "shared": shared}
        yield term("reduce_buffers", moments, what, expression, _TRACE, **values).at(instant)


def ends_with_routed(rank: RankModel) -> bool:
    """True if nothing of the experts follows the routed ones in backward, as what every token meets does in Llama 4.

    DeepSeek's classes compute that last, so that its backward pass comes first; others were not looked at.
    """
    return rank.spec.model.family.startswith("deepseek") or not _shared_trained(rank)


def _shared_trained(rank: RankModel) -> int:
    """Parameters of the experts that every token meets, whose gradients come before those of the routed ones."""
    rows = block_weights(rank.family, rank.spec.model, rank.spec.model.num_hidden_layers - 1)
    return sum(weight.elements for weight in rows if "shared" in weight.name)


def weight_gradients(
    rank: RankModel, kind: BlockKind, moments: Moments, what: str, trained: int
) -> Iterator[MemoryTerm]:
    """The first of a block's gradients, beside all that it saved, and at the end all ``trained`` beside its first norm.

    The last weight of the MLP has the first one.
    """
    z, tok, inside, k = rank.engine.size, rank.tokens, inside_mlp(rank, kind), first_norm(rank, kind)
    yield content(rank, kind, moments).at("weight gradient")
    values = {"inside": inside, "tok": tok, "z": z, "w": kind.elements.last_trained}
    first, expression = "gradients inside the MLP and of its last weight", "inside * tok + z * w"
    yield term("temporary", moments, first, expression, FSDP_TRACE, **values).at("weight gradient")
    norm, instant = "first norm of one block", "block gradients"
    yield term("activations", moments, norm, "k * tok", FSDP_TRACE, k=k, tok=tok).at(instant)
    yield term("temporary", moments, what, "z * block", FSDP_TRACE, z=z, block=trained).at(instant)


def _reduced_experts(rank: RankModel, own: Parts, moments: Moments) -> Iterator[MemoryTerm]:
    """The experts' reduction beside the gradients of the rest of their block."""
    if own.expert_trained:
        what, expression = "input of the experts' reduction", "z_red * expert - z * there"
        values: dict[str, Value] = {"z_red": rank.dtypes.size("reduce"), "expert": own.expert_trained}
        values |= {"z": rank.engine.size, "there": 0 if reshards(rank.spec) else own.expert}
        yield term("reduce_buffers", moments, what, expression, _TRACE, **values).at("block gradients")
        what = "gradients of the experts"
        yield term("gradients", moments, what, "z_acc * shard", _TRACE, **_shard(rank, own)).at("block gradients")


def _waiting(rank: RankModel, moments: Moments, instants: Sequence[str]) -> Iterator[MemoryTerm]:
    """The reduction's input of the block before, which is held until the next reduction."""
    z_red, what = rank.dtypes.size("reduce"), "reduce-scatter input of a block"
    for moment, place in places(rank).items():
        if moment in moments:
            behind = rank.blocks[rank.order[min(place + 1, len(rank.order) - 1)]]
            dense, here = parts(rank, behind.elements).dense_trained, frozenset[Moment]((moment,))
            for instant in instants:
                yield term("reduce_buffers", here, what, "z_red * dense", _TRACE, z_red=z_red, dense=dense).at(instant)


def _shard(rank: RankModel, own: Parts) -> dict[str, Value]:
    shard = ceil(own.expert_trained * rank.view.expert_states.gradients)
    return {"z_acc": rank.dtypes.size("accumulate"), "shard": shard}


def _stream_gradient(rank: RankModel, moments: Moments) -> MemoryTerm:
    k, what = rank.token_bytes([block_input(rank)]), "gradient of the residual stream"
    return term("temporary", moments, what, "k * tok", _TRACE, k=k, tok=rank.tokens)
