"""Buffers and temporaries of PyTorch's FSDP2 and DDP, as seen in traces of the live tensors of both.

FSDP2 gathers a block's parameters ahead of its pass and reduces its gradients behind it: ``gathered``,
``block_reduction`` and ``root_reduction`` follow both through the moments of a step. DDP keeps whole parameters and
reduces buckets; under autocast it keeps copies of weights (``autocast``). Inside the backward pass of a block
``block_instants`` names the instants that are fuller than the one of its MLP may be.
"""

from collections.abc import Iterable, Iterator
from math import ceil

from launcher.backends.fsdp import experts, float8, ring, split
from launcher.backends.fsdp.autocast import DDP_TRACE, FSDP_TRACE, output_elements, tied_table, weight_cache
from launcher.backends.fsdp.experts import gathered_term
from launcher.backends.fsdp.traits import is_ddp, reduces_each, reshards, splits
from launcher.base.formula import Value
from launcher.estimate.memory import device, optimizer, states
from launcher.estimate.memory.activations import (
    block_input,
    content,
    fullest_in_forward,
    inside_mlp,
    places,
    running_blocks,
)
from launcher.estimate.memory.host import staged
from launcher.estimate.memory.moments import (
    ALWAYS,
    BLOCK_BACKWARD,
    LOAD,
    PASSES,
    ROOT_BACKWARD,
    TRAINING,
    UNTIL_FIRST_GRADIENTS,
    Moment,
    Moments,
)
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import BlockKind, RankModel
from launcher.estimate.rank.shards import WeightCounts


def overheads(rank: RankModel) -> Iterable[MemoryTerm]:
    """All terms that FSDP2, or DDP and autocast, add."""
    apart, shared = splits(rank.spec), rank.spec.parallel.expert > 1
    if rank.spec.parallel.shard:
        yield from states.constants(rank)
        yield from () if apart else sharded(rank)
    else:
        yield from weight_cache(rank)
        yield from buckets(rank)
        yield from output_gradient(rank)
    if apart:
        yield from split.overheads(rank)
    elif not shared:
        for moments, kind in running_blocks(rank):
            yield from block_instants(rank, kind, moments)
    for terms in (exchanged, unsplit, untied, restoring, staged, ring.overheads, float8.overheads):
        yield from terms(rank)
    yield from split.stage_overheads(rank, ddp=is_ddp(rank.spec))


def sharded(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gathered parameters and reductions of FSDP2, block by block."""
    if rank.spec.parallel.expert > 1:
        yield from experts.overheads(rank, output_elements(rank) if rank.root.trained else 0)
    else:
        yield from gathered(rank)
        yield from block_reduction(rank)
    yield from root_reduction(rank)
    yield from unreduced(rank)


def gathered(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gathered parameters in the compute format: the root group, the current block, and one all-gather's output.

    ``z (root + 2 block)`` in forward (the all-gather's output is held one step by ``all_gather_state``) and in backward
    (the prefetched next block). The worker computes the loss inside the root module, which stays gathered from forward
    to backward, and the last block's all-gather output lasts as long. Without resharding after forward every
    block stays until its own backward pass, which gathers nothing. One rank alone gathers nothing ahead and has no
    output of an all-gather: it casts its own weights when a block begins (``wait_for_unshard``).
    """
    every = [rank.gathered_blocks(kind.elements) for kind in rank.blocks]
    own, order = reshards(rank.spec), [every[kind] for kind in rank.order] or [0]
    if own and rank.spec.shard_degree == 1:
        yield gathered_term(rank, ("output", "loss", "loss_backward"), "root")
        for moment, place in {"forward": -1, **places(rank)}.items():
            yield gathered_term(rank, (moment,), "root + block", block=order[place])
        return
    if own:
        block = rank.gathered_blocks(fullest_in_forward(rank).elements) if every else 0
        yield gathered_term(rank, ("forward",), "root + 2 * block", block=block)
        yield gathered_term(rank, ("output", "loss", "loss_backward"), "root + block", block=order[-1])
    else:
        blocks, block = rank.gathered_blocks(rank.all_blocks), rank.gathered_blocks(rank.largest_block)
        yield gathered_term(rank, ("forward", "output", "loss"), "root + blocks + block", blocks=blocks, block=block)
        yield gathered_term(rank, ("loss_backward", "block_backward"), "root + blocks", blocks=blocks)
        yield gathered_term(rank, ("next_block_backward",), "root + max(blocks - block, 0)", blocks=blocks, block=block)
    pairs: dict[tuple[Value, Value], list[Moment]] = {}
    for moment, place in places(rank).items():
        if own or moment in ("second_layer_backward", "first_layer_backward"):
            pairs.setdefault((order[place], order[place - 1] if place > 0 else 0), []).append(moment)
    for (block, ahead), moments in pairs.items():
        yield gathered_term(rank, tuple(moments), "root + block + ahead", block=block, ahead=ahead)
    yield from kept_after_forward(rank)


def kept_after_forward(rank: RankModel) -> Iterator[MemoryTerm]:
    """Shards over ``N`` ranks that blocks keep from their forward to their backward pass: ``z P / N``.

    ``to_sharded_post_forward`` of ``_fsdp_param.py`` copies them in the compute format, and ``to_unsharded`` frees them
    when a block begins, not when it is gathered ahead.
    """
    n, blocks = rank.spec.backend.kept_over, rank.compute_parameters(rank.all_blocks)
    block, layers = rank.compute_parameters(rank.largest_block), rank.layers
    places: dict[Moment, int] = {
        "forward": 1, "output": 0, "loss": 0, "loss_backward": 0, "block_backward": 1, "next_block_backward": 2,
        "second_layer_backward": layers - 1,
    }  # fmt: skip
    for moment, gone in places.items() if n > 1 else ():
        what, values = "parameters kept over some ranks", {"z": rank.engine.size, "blocks": blocks, "block": block}
        formula = "ceil(z * max(blocks - gone * block, 0) / N)"
        yield term("gather_buffers", (moment,), what, formula, FSDP_TRACE, **values, gone=gone, N=n)


def block_reduction(rank: RankModel) -> Iterator[MemoryTerm]:
    """Input of the previous block's reduce-scatter, in the reduce format, held until the next reduction: ``z block``.

    Its output is the gradient shard, which ``gradients`` counts; an offloaded one is freed once it is on the host. The
    unreduced gradient of the output projection is held as well. A reduction comes at the end of a block's backward
    pass, when the block's activations and gathered weights are freed: ``foreach_reduce`` (_fsdp_collectives.py) holds
    the gradients beside its input, which takes the place of the previous block's, then the input beside the output,
    which it adds to earlier micro-batches' sums. Gloo sums a copy (``reduce_scatter_tensor_coalesced``).
    """
    z, z_red, k = rank.engine.size, rank.dtypes.size("reduce"), rank.token_bytes([block_input(rank)])
    head = rank.head.trained - rank.counts.shared.trained + (tied_table(rank) if rank.root.trained else 0)
    values = {"z": z, "z_red": z_red, "k": k, "tok": rank.tokens}
    values["copies"] = int(not rank.cuda and rank.spec.shard_degree > 1)
    order = [rank.blocks[kind].elements for kind in rank.order] or [WeightCounts()]
    for moment, place in places(rank).items():
        own, behind, first = order[place], order[min(place + 1, len(order) - 1)], moment == "block_backward"
        what, block = ("", 0) if first else ("reduce-scatter input of a block, ", behind.trained)
        what, expression = f"{what}gradient of the output projection", "z_red * block + z * head"
        yield term("reduce_buffers", (moment,), what, expression, FSDP_TRACE, z_red=z_red, block=block, z=z, head=head)
        if rank.engine.gradients_leave and not first:
            yield leaving(rank, (moment,), behind.gradients)
        if not rank.engine.gradients_last:
            what = "a block's reduction, beyond its gathered weights"
            expression = "inputs * z_red * w + max(z * w, z_red * (shard + copies * w)) - z * block + k * tok"
            sizes = {"w": own.trained, "shard": own.gradients, "block": rank.gathered_blocks(own), "inputs": int(first)}
            yield term("reduce_buffers", (moment,), what, expression, FSDP_TRACE, **values, **sizes).at("reduction")


def leaving(rank: RankModel, moments: Iterable[Moment], shard: int) -> MemoryTerm:
    """Output of a reduction, of ``shard`` elements, while it is copied to the host."""
    what, z_acc = "gradients on their way to the host", rank.dtypes.size("accumulate")
    return term("gradients", moments, what, "z_acc * shard", FSDP_TRACE, z_acc=z_acc, shard=shard)


def unreduced(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gradients that wait unreduced for the last micro-batch, whole and in the reduce format: ``z P``.

    ``set_requires_gradient_sync(False)`` accumulates them in ``unsharded_accumulated_grad`` (``_fsdp_param.py``).
    """
    spec = rank.spec
    if spec.gradient_accumulation > 1 and not reduces_each(spec):
        z_red, trained = rank.dtypes.size("reduce"), rank.elements.trained
        what = "unreduced gradients"
        yield term("gradients", PASSES, what, "z_red * trained", FSDP_TRACE, z_red=z_red, trained=trained)


def root_reduction(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gradients of the root group and, in the reduce format, its reduce-scatter's input, at the end of backward.

    At first the gathered root group and the last block's reduction are still held beside those gradients; then the
    reduction's input. The gradients are freed before the reduction's output, the root group's gradient shards, is made.
    """
    z, z_red, trained = rank.engine.size, rank.dtypes.size("reduce"), rank.root.trained
    shards = rank.elements.gradients - (rank.root.gradients if rank.spec.gradient_accumulation == 1 else 0)
    shards = 0 if rank.engine.gradients_leave else shards

    def reduced(what: str, instant: str, expression: str, **values: Value) -> Iterator[MemoryTerm]:
        if instant != "all gradients":
            z_acc = rank.dtypes.size("accumulate")
            what_else, sizes = "gradients of the blocks", {"z_acc": z_acc, "shard": shards}
            yield term("gradients", ROOT_BACKWARD, what_else, "z_acc * shard", FSDP_TRACE, **sizes).at(instant)
        yield term("reduce_buffers", ROOT_BACKWARD, what, expression, FSDP_TRACE, **values).at(instant)

    before = {"root": rank.compute_parameters(rank.root), "block": _first(rank)}
    what = "gathered root group, its gradients, a block's reduction"
    expression = "z * (root + root_trained) + z_red * block"
    yield from reduced(what, "root gradients", expression, z=z, z_red=z_red, root_trained=trained, **before)
    what = "gradients of the root group and the input of their reduction"
    yield from reduced(what, "root reduction", "(z + z_red) * root_trained", z=z, z_red=z_red, root_trained=trained)
    what, expression = "input of the root's reduction", "z_red * root_trained"
    yield from reduced(what, "all gradients", expression, z_red=z_red, root_trained=trained)
    if rank.engine.gradients_leave:
        yield leaving(rank, ROOT_BACKWARD, rank.root.gradients).at("all gradients")


def _first(rank: RankModel) -> int:
    """Trained parameters of the first block, without experts that are reduced apart."""
    counts = rank.blocks[rank.order[0]].elements if rank.blocks else None
    if counts is not None and rank.spec.parallel.expert > 1:
        return experts.parts(rank, counts).dense_trained
    return 0 if counts is None else counts.trained


def block_instants(rank: RankModel, kind: BlockKind, moments: Moments) -> Iterator[MemoryTerm]:
    """Further instants of a block's backward pass: with one weight's gradient, and with all of the block's gradients.

    FSDP2 holds all of a block's gradients until the block's end, when only the first norm's activations are left;
    early on it holds the last weight's gradient and all activations. DDP copies each gradient into its bucket by
    itself, under autocast through an fp32 copy, when half of the gradients inside the MLP exist.
    """
    block = kind.elements
    if not rank.spec.parallel.shard:
        yield content(rank, kind, moments).at("weight gradient")
        yield _ddp_gradient(rank, moments, inside_mlp(rank, kind))
        return
    if experts.parts(rank, block).expert_trained and not block.stacked and experts.ends_with_routed(rank):
        yield from experts.expert_gradients(rank, kind, moments)
    yield from experts.weight_gradients(rank, kind, moments, "gradients of one block", block.trained)


def _ddp_gradient(rank: RankModel, moments: Moments, inside: Value) -> MemoryTerm:
    """One weight's gradient, under autocast with its fp32 copy, and half of the gradients inside the MLP.

    Experts' gradients need no copy, since autocast does not cast their products. Their first gradient appears as an
    MLP's does, the larger one once the tensors that their products saved are freed: twice the gradients inside the
    experts, without the residual stream's. Without buckets the first one is still held then.
    """
    block, z, common = rank.largest_block, rank.engine.size, {"inside": inside, "tok": rank.tokens}
    what, half = "gradients inside the MLP and of one weight", "ceil(inside * tok / 2)"
    if not rank.engine.autocast:
        expression, values = f"{half} + z * w", {"z": z, "w": block.last_trained}
    elif block.expert:
        waits = not rank.engine.gradients_stay and rank.spec.gradient_accumulation == 1
        later = "z_par * (w + w_next)" if waits else "z_par * w_next"
        expression = f"max({half} + z_par * w, {later} + (2 * z_res * h - inside) * tok)"
        common |= {"z_res": rank.engine.residual_size, "h": rank.spec.model.hidden_size}
        values = {"z_par": rank.dtypes.size("parameters"), "w": block.last_trained, "w_next": block.largest_trained}
    else:
        expression, values = f"{half} + z * w + 4 * w_next", {"z": z, "w": block.last_trained}
        values["w_next"] = block.largest_trained
    return term("temporary", moments, what, expression, DDP_TRACE, **common, **values).at("weight gradient")


def output_gradient(rank: RankModel) -> Iterator[MemoryTerm]:
    """DDP: gradient of a tied output projection until the embedding's exists; without buckets that of an untied one."""
    tied, waits = rank.spec.model.tie_word_embeddings, rank.spec.gradient_accumulation > 1
    if rank.root.trained and rank.blocks and (tied or not (rank.engine.gradients_stay or waits)):
        z_acc, head = rank.dtypes.size("accumulate"), output_elements(rank) if tied else rank.head.trained
        head -= rank.counts.shared.trained
        what = f"gradient of the {'tied ' if tied else ''}output projection"
        yield term("temporary", BLOCK_BACKWARD, what, "z_acc * head", DDP_TRACE, z_acc=z_acc, head=head)


def exchanged(rank: RankModel) -> Iterator[MemoryTerm]:
    """Symmetric memory, outside of torch's allocator, in which products exchange their parts: ``2 z h tok / t``.

    One workspace per group, the size of its largest use: two parts of a scattered sum
    (``_pipelined_produce_and_all2all`` of ``torch/distributed/_symmetric_memory``); a gathered input takes one.
    """
    if rank.spec.parallel.async_tensor:
        what, h, t = "symmetric memory of tensor parallel ranks", rank.spec.model.hidden_size, rank.spec.parallel.tensor
        source, z = "torch/distributed/_symmetric_memory/__init__.py", rank.engine.size
        formula = "2 * z * h * ceil(tok / t)"
        yield term("communicators", ALWAYS, what, formula, source, z=z, h=h, tok=rank.tokens, t=t)


def unsplit(rank: RankModel) -> Iterator[MemoryTerm]:
    """Unused ends of the segments of weights or shards, allocated before any memory was freed (``device.unsplit``)."""
    spec, z_par = rank.spec, rank.dtypes.size("parameters")
    if rank.cuda and spec.train.allocator == "default" and spec.zero.offload_parameters == "none":
        what = "rests of segments, too small to split off"
        shards = (*rank.elements.stepped, *rank.elements.frozen)
        sizes = (*(z_par * shard for shard in shards), *rank.elements.packed)
        rests = sum(map(device.unsplit, sizes))
        yield term("workspace", ALWAYS, what, "rests", "torch CUDACachingAllocator.cpp, should_split", rests=rests)


def untied(rank: RankModel) -> Iterator[MemoryTerm]:
    """Memory of a tied output projection while the model is loaded, until it is tied again.

    ``to_empty`` (``torch/nn/modules/module.py``) makes each module's parameters anew. DDP's buckets come later and
    take more.
    """
    if rank.tied and not rank.engine.gradients_stay and rank.spec.zero.offload_parameters == "none":
        shard, z_par = ceil(rank.embedding.largest * rank.view.states.parameters), rank.dtypes.size("parameters")
        what, source = "a tied output projection", "launcher/worker/fsdp/engine.py, torch.nn.Module.to_empty"
        yield term("temporary", ("load",), what, "z_par * shard", source, z_par=z_par, shard=shard).at("untied")


def restoring(rank: RankModel) -> Iterator[MemoryTerm]:
    """Memory of the step on zero gradients by which torch creates optimizer states while it loads a checkpoint.

    It takes as much as a step (``_init_optim_state``, ``torch/distributed/checkpoint/state_dict.py``); where gradients
    are views of buckets, the zeros are extra. Tensors are then read into their places one at a time.
    """
    if rank.spec.save.load is None or rank.spec.zero.offload_parameters != "none":
        return
    what = "gradients of zeros"
    source = "torch/distributed/checkpoint/state_dict.py"
    z_par = rank.dtypes.size("parameters")
    shard = rank.elements.optimizer
    yield term("gradients", LOAD, what, "z_par * shard", source, z_par=z_par, shard=shard).at("restoring")
    buffers = (each for each in states.gradients(rank) if each.moments == LOAD)
    for each in (*buffers, *optimizer.optimizer_states(rank), *optimizer.step_temporaries(rank)):
        yield each._replace(moments=LOAD).at("restoring")


def buckets(rank: RankModel) -> Iterator[MemoryTerm]:
    """DDP's buckets where gradients are not views of them: fp32, permanent, ``4 P`` beside the gradients.

    Where they are views, gradients of earlier micro-batches are not (``zero_grad(set_to_none=True)`` ends the view, and
    ``no_sync`` leaves them outside): they stand beside the buckets until the last backward pass copies each.
    """
    if not is_ddp(rank.spec):
        return
    z_acc, elements = rank.dtypes.size("accumulate"), rank.elements.trained
    if not rank.spec.backend.bucket_view:
        made = term("reduce_buffers", LOAD, "buckets", "z_acc * trained", DDP_TRACE, z_acc=z_acc, trained=elements)
        yield made._replace(moments=TRAINING)
        yield made.at(states.STATES_MADE)
    elif rank.spec.gradient_accumulation > 1:
        block, table = rank.largest_block.trained, rank.embedding.trained
        rest = max(rank.all_blocks.trained - block, 0)
        left: dict[Moments, int] = {
            UNTIL_FIRST_GRADIENTS: elements,
            frozenset(("next_block_backward",)): rest + table,
            frozenset(("second_layer_backward", "first_layer_backward")): block + table,
        }
        for moments, w in left.items():
            what = "gradients of earlier micro-batches"
            yield term("gradients", moments, what, "z_acc * trained", DDP_TRACE, z_acc=z_acc, trained=w)
