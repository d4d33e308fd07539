"""Instants that may be fuller than the MLP's (scores, scans, experts), and tensors that several blocks share."""

from collections.abc import Iterator
from dataclasses import replace

from launcher.base.formula import Value
from launcher.estimate.memory import activations
from launcher.estimate.memory.activations import block_input, content, expert_outputs, places, running_blocks
from launcher.estimate.memory.moments import BEFORE_BLOCKS_BACKWARD, Moment, Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.counts import block_weights
from launcher.estimate.rank.model import BlockKind, RankModel
from launcher.estimate.rank.tensors import SavedTensor

_TRACE = "traces of eager attention; aten/src/ATen/native/SoftMax.cpp"
_EXPERTS = "transformers/integrations/moe.py, grouped_mm_experts_forward, and traces"
_LOOP = "transformers/models/dbrx/modeling_dbrx.py, DbrxExperts, and traces"
_MASK = "torch aten/src/ATen/native/transformers/attention.cpp, convert_boolean_attn_mask"
_INSTANT = "scores"


def scores(rank: RankModel) -> Iterator[MemoryTerm]:
    """Attention scores, scans and experts' outputs in both passes, as instants that compete with the MLP's."""
    if not rank.blocks or rank.engine.library != "transformers":
        return
    for made in _rows(rank.last_block):
        if made.part != "mixer" or not rank.last_block.repeats("mixer"):
            yield from _forward(rank, rank.last_block, made)
    if (row := expert_outputs(rank.last_block)) and not rank.last_block.repeats("experts"):
        yield _weighted(rank, rank.last_block, row)
    for moments, kind in running_blocks(rank):
        for made in _rows(kind):
            yield from _backward(rank, kind, moments, made)
        yield from _looped(rank, kind, moments)
        if row := expert_outputs(kind):
            yield from _reordered(rank, kind, moments, row)


def _weighted(rank: RankModel, kind: BlockKind, row: SavedTensor) -> MemoryTerm:
    """The last block's experts' outputs times the router's weights, before and after they are reordered."""
    there = [item for item in kind.saved if item.name in ("expert inputs", "expert outputs")]
    held = [] if rank.family.saves_input(rank.spec.model, rank.engine) else [block_input(rank)] * 2
    values = {"k": rank.token_bytes([replace(row, bytes=row.made), *held]), "k_there": rank.token_bytes(there)}
    what, expression = "experts' outputs and their products with the router's weights", "max(k - k_there, 0) * tok"
    return term("temporary", ("forward",), what, expression, _EXPERTS, tok=rank.tokens, **values).at("experts")


def _reordered(rank: RankModel, kind: BlockKind, moments: Moments, row: SavedTensor) -> Iterator[MemoryTerm]:
    """The gradient of the experts' outputs while it is reordered, after the backward pass of the shared experts.

    It is cast where the outputs are narrower; recomputed experts free their outputs before that.
    """
    place = kind.saved_if_trained.index(row)
    done = [each for each in kind.saved_if_trained[place:] if each.part in ("mlp", "activation")]
    yield content(rank, kind, moments, saved=[each for each in kind.saved if each not in done]).at("experts")
    cast = row.undone // 6 if row.undone > 3 * row.bytes and not kind.repeats("experts") else 0  # Of 4 bytes, to 2.
    rows = [replace(row, bytes=row.undone + cast), block_input(rank), *([block_input(rank)] if done else [])]
    what, k = "gradients of the experts' outputs", rank.token_bytes(rows)
    yield term("temporary", moments, what, "k * tok", _EXPERTS, k=k, tok=rank.tokens).at("experts")


def _looped(rank: RankModel, kind: BlockKind, moments: Moments) -> Iterator[MemoryTerm]:
    """The instant at which the second expert's gradient of a matrix is added to the first one's.

    Each matrix has a sum so far, as large as itself. One also has the second expert's gradient, zero but for its rows,
    those rows, and the new sum, a separate tensor where a dispatch mode is on (``can_accumulate_inplace``,
    ``torch/csrc/autograd/input_buffer.cpp``). The tensors that two of ``e`` experts saved or cast are freed.
    """
    counts, e, z = kind.elements, rank.spec.model.num_experts, rank.engine.size
    if not (counts.stacked and counts.trained >= counts.stacked):
        return
    z_grad, z_cast = (rank.dtypes.size("parameters"), z) if rank.engine.autocast else (z, 0)
    gone = min(2, e)
    left = [(row, row.bytes * (e - gone if row.share.startswith("routed") else e)) for row in kind.saved]
    rows = [replace(row, bytes=-(-size // e)) for row, size in left]
    yield content(rank, kind, moments, saved=rows).at("expert gradients")
    values: dict[str, Value] = {"z_grad": z_grad, "stacked": counts.stacked, "w": counts.largest_trained, "e": e}
    values |= {"z_cast": z_cast, "gone": gone, "z_res": rank.engine.residual_size, "tok": rank.tokens}
    sums, casts = "z_grad * (stacked + 2 * w + ceil(stacked / e))", "z_cast * ceil(gone * stacked / e)"
    expression, h = f"{sums} - {casts} + 2 * z_res * h * tok", rank.spec.model.hidden_size
    yield term("temporary", moments, "gradients of experts", expression, _LOOP, h=h, **values).at("expert gradients")


def _forward(rank: RankModel, kind: BlockKind, row: SavedTensor) -> Iterator[MemoryTerm]:
    """The instant of the forward pass at which the last block has computed its softmax, or a scan.

    Without recomputation all that the block saves is counted elsewhere, even scores and later tensors not yet made.
    """
    before, after = _around(kind, row)
    after = [item for item in after if item.module not in kind.recomputed]
    after += [item for item in kind.kept if item.part == "input" and item.module in ("mlp", "experts")]
    made, (instant, what, _) = replace(row, bytes=row.made), _words(row)
    if rank.engine.unfused_attention:
        s = rank.engine.sequence_length
        yield term("temporary", ("forward",), "mask", "z * s * s", _MASK, z=4, s=s).at(_INSTANT)
    if not kind.repeats(row.module or "attention"):
        values = {"k": rank.token_bytes([made]), "k_there": rank.token_bytes([row, *after]), "tok": rank.tokens}
        yield term("temporary", ("forward",), what, "max(k - k_there, 0) * tok", _TRACE, **values).at(instant)
    else:
        # A block that saves nothing still names the norm's output, queries, keys and values.
        named = [item for item in before if item.part == "attention"]
        k = rank.token_bytes([made, *named, block_input(rank)])
        there = rank.token_bytes(after if kind.kept else _kept_later(kind, after))
        expression, values = ("max(k - k_there, 0) * tok", {"k_there": there}) if there else ("k * tok", {})
        yield term("temporary", ("forward",), what, expression, _TRACE, k=k, tok=rank.tokens, **values).at(_INSTANT)


def _kept_later(kind: BlockKind, after: list[SavedTensor]) -> list[SavedTensor]:
    """Products that per-operator selective checkpointing keeps, and that are computed after the scores."""
    products = {row.output_of for row in after} - {""}
    return [row for row in kind.saved if row.part == "cache" and (row.last or row.output_of in products)]


def _backward(rank: RankModel, kind: BlockKind, moments: Moments, row: SavedTensor) -> Iterator[MemoryTerm]:
    """The instant at which the gradient passes through the softmax, or at which a scan has been recomputed.

    The block still holds what it saved before it, beside the gradient of the residual stream.
    """
    before, _ = _around(kind, row)
    instant, _, what = _words(row)
    yield content(rank, kind, moments, saved=before).at(instant)
    again = row.made if kind.repeats(row.module or "attention") else 0
    k = rank.token_bytes([replace(row, bytes=max(row.undone, again)), block_input(rank)])
    yield term("temporary", moments, what, "k * tok", _TRACE, k=k, tok=rank.tokens).at(instant)


def _rows(kind: BlockKind) -> list[SavedTensor]:
    """The saved rows of scores and scans; none where attention stores no scores, or their temporaries are not known."""
    return [row for row in kind.saved_if_trained if row.made and row.part != "moe"]


def _words(row: SavedTensor) -> tuple[str, str, str]:
    """The instant of a row, and descriptions of its temporaries in forward and in backward."""
    if row.part == "mixer":
        return "scan", "tensors of a scan", "tensors of a recomputed scan"
    return _INSTANT, "attention's scores and their softmax", "attention's softmax and its gradients"


def _around(kind: BlockKind, row: SavedTensor) -> tuple[list[SavedTensor], list[SavedTensor]]:
    """Tensors that the block saves before its scores, and after them, in the order of its forward pass."""
    rows = [item for item in kind.saved_if_trained if item.part != "cache"]
    place = rows.index(row)
    return rows[:place], rows[place + 1 :]


def used_again(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gradients of weights that several blocks use, held whole from the backward of the last of them to the first's.

    Autograd accumulates them before it passes them on; under FSDP they stay unreduced to the end of the backward pass.
    Under autocast they are in the compute format, since all uses read one cast.
    """
    if w := rank.counts.shared.trained:
        weights = (block_weights(rank.family, rank.spec.model, layer) for layer in rank.view.layers)
        users = [at for at, rows in enumerate(weights) if any(row.outside for row in rows)]
        first = 0 if rank.spec.parallel.shard else users[0]
        moments = frozenset(moment for moment, at in places(rank).items() if first <= at < users[-1])
        what, z = "gradients of weights that several blocks use", rank.engine.size
        yield term("temporary", moments, what, "z * w", activations.BACKWARD_TRACE, z=z, w=w)


def embeddings_again(rank: RankModel) -> Iterator[MemoryTerm]:
    """The embeddings that blocks read beside the residual stream, and their gradient once the last such block has run.

    A copy exists during the forward pass, and as long as a block that reads it may be recomputed. The first gradient is
    one half of a tensor that holds both; from the second on only the sum exists.
    """
    joins, model = rank.family.traits.joins, rank.spec.model
    every = [at for at, layer in enumerate(rank.view.layers) if joins(model, layer)] if joins else []
    if not every:
        return
    z_res, h, tok = rank.engine.residual_size, model.hidden_size, rank.tokens
    again = any(rank.blocks[rank.order[at]].recomputed for at in every)
    kept: Moments = frozenset(moment for moment, at in places(rank).items() if at >= every[0])
    moments: Moments = kept | BEFORE_BLOCKS_BACKWARD if again else frozenset(("forward",))
    what, source = "embeddings that blocks read", activations.BACKWARD_TRACE
    yield term("activations", moments, what, "z_res * h * tok", activations.SOURCE, z_res=z_res, h=h, tok=tok)
    if not rank.embedding.trained:
        return
    rows: dict[Moment, int] = {moment: sum(place > at for place in every) for moment, at in places(rank).items()}
    for moment, n in (*rows.items(), ("root_backward", len(every))):
        if n:
            values = {"n": 2 if n == 1 else 1, "z_res": z_res, "h": h, "tok": tok}
            yield term("temporary", (moment,), f"gradient of {what}", "n * z_res * h * tok", source, **values)
