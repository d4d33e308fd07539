"""Buffers and temporaries of TRL's runs: those of the engine below, of TRL's loss, and of the reference model.

accelerate shards by FSDP2 in other groups than the launcher's own worker: the token embedding is one, and the last norm
with the output projection another, which stays gathered until its backward pass (``fsdp2_prepare_model`` of
``accelerate/utils/fsdp_utils.py``, 1.15); tied, all of it is that one group, as in our worker. The reference model of
DPO and KTO is one group as a whole (``prepare_fsdp`` of ``trl/models/utils.py``), so that its forward pass gathers it.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from launcher.backends.fsdp.overheads import block_instants, unreduced
from launcher.backends.fsdp.traits import is_ddp
from launcher.backends.trl.traits import SOURCE, TILE, as_engine, backend_of, engine_of
from launcher.base.formula import Value
from launcher.base.units import MIB
from launcher.estimate.memory import states
from launcher.estimate.memory.activations import running_blocks
from launcher.estimate.memory.host import staged
from launcher.estimate.memory.moments import ALWAYS, FORWARD, LATER_BLOCKS_BACKWARD, LOAD, ROOT_BACKWARD, Moment
from launcher.estimate.memory.terms import MemoryTerm, Pile, term
from launcher.estimate.rank.model import RankModel

_GROUPS = "accelerate/utils/fsdp_utils.py, fsdp2_prepare_model; traces of torch.distributed.fsdp"
_REFERENCE = "trl/models/utils.py, prepare_fsdp and prepare_deepspeed"


def overheads(rank: RankModel) -> Iterator[MemoryTerm]:
    """All terms of the engine, the loss and the reference model."""
    below = replace(rank, spec=as_engine(rank.spec))
    if engine_of(rank.spec) == "fsdp" and not rank.tied:
        yield from _sharded(below)
    else:
        yield from backend_of(rank.spec).overheads(below)
    if engine_of(rank.spec) == "deepspeed":
        yield from staged(rank)
    elif not rank.spec.adapter.bits:  # Beside a quantised base TRL makes an adapter bf16.
        yield from adapters(rank)
        yield from _casts(rank)
    yield from _loading(rank)
    yield from _loss(rank)
    yield from _reference(rank)


def _loading(rank: RankModel) -> Iterator[MemoryTerm]:
    """Temporaries of loading: DDP's broadcast, two buckets of 250 MiB at a time, or on CPUs FSDP2's whole model.

    ``_broadcast_coalesced`` of ``torch/csrc/distributed/c10d/comm.cpp`` fills a bucket until it has that size. The
    state dict that accelerate takes before it shards (``original_sd``) keeps the model where it was loaded.
    """
    engine, source = engine_of(rank.spec), "torch/csrc/distributed/c10d/comm.cpp, broadcast_coalesced"
    formula, values = "z_par * P", {"z_par": rank.dtypes.size("parameters"), "P": rank.elements.whole}
    if rank.spec.adapter.name != "none" and not rank.spec.adapter.bits:
        formula, values["trained"] = f"{formula} + (4 - z_par) * trained", rank.elements.trained
    if engine == "ddp" and is_ddp(rank.spec):
        what, formula = "weights that are broadcast", f"min({formula}, 2 * ({250 * MIB} + z_par * w))"
        values["w"] = max(rank.embedding.largest, rank.largest_block.largest)
        yield term("gather_buffers", LOAD, what, formula, source, **values).at("broadcast")
    if engine == "fsdp" and not rank.cuda:
        what = "the model before it is sharded"
        yield term("parameters", LOAD, what, formula, _GROUPS, **values).at("sharding")


def _sharded(rank: RankModel) -> Iterator[MemoryTerm]:
    """FSDP2 with the embedding and the head in groups of their own."""
    yield from states.constants(rank)
    yield from _gathered(rank)
    yield from _reduced(rank)
    yield from unreduced(rank)
    for moments, kind in running_blocks(rank):
        yield from block_instants(rank, kind, moments)


def _gathered(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gathered parameters: a group and the last all-gather's output in forward, two blocks in backward.

    The last block is gathered, and the head's gradient reduced, while the loss still holds its tile; the first block
    gathers the embedding. Without resharding after forward every block stays until its backward pass.
    Beside an adapter accelerate does not find the last norm (``_find_final_norm``): the loss gathers the head itself,
    and the last block's output of an all-gather stays until then.
    """
    sizes: dict[str, Value] = {
        "z": rank.engine.size,
        "block": rank.compute_parameters(rank.largest_block),
        "head": rank.compute_parameters(rank.head),
        "embed": rank.compute_parameters(rank.embedding),
        "n": min(rank.layers, 2),
    }
    last = "head" if rank.spec.adapter.name == "none" else "block"
    places: dict[tuple[Moment, ...], str] = {
        ("forward",): "2 * block",
        ("output", "loss"): f"{last} + head",
        ("loss_backward",): "block + head",
        ("block_backward", "next_block_backward", "second_layer_backward"): "n * block",
        ("first_layer_backward",): "block + embed",
    }
    if rank.spec.zero.stage == 2:
        sizes["blocks"] = rank.compute_parameters(rank.all_blocks)
        places = {
            ("forward",): "blocks + block + embed",
            ("output", "loss"): f"blocks + embed + {last} + head",
            ("loss_backward",): "blocks + embed + head",
            ("block_backward",): "blocks + embed",
            ("next_block_backward",): "max(blocks - block, 0) + embed",
            ("second_layer_backward",): "n * block + embed",
            ("first_layer_backward",): "block + embed",
        }
    for moments, expression in places.items():
        words = re.findall(r"\w+", expression)
        used = {name: value for name, value in sizes.items() if name == "z" or name in words}
        yield term("gather_buffers", moments, "gathered parameters", f"z * ({expression})", _GROUPS, **used)


def _reduced(rank: RankModel) -> Iterator[MemoryTerm]:
    """Input of the previous reduction, in the reduce format; at the end also the embedding's, and its gradient."""
    z, z_red, block = rank.engine.size, rank.dtypes.size("reduce"), rank.largest_block.trained
    what, head, embed = "reduce-scatter input", rank.head.trained, rank.embedding.trained
    first: tuple[Moment, ...] = ("loss_backward", "block_backward")
    yield term("reduce_buffers", first, f"{what} of the head", "z_red * head", _GROUPS, z_red=z_red, head=head)
    moments = LATER_BLOCKS_BACKWARD
    yield term("reduce_buffers", moments, f"{what} of a block", "z_red * block", _GROUPS, z_red=z_red, block=block)
    z_acc, shard = rank.dtypes.size("accumulate"), rank.elements.gradients - rank.embedding.gradients
    pieces = {
        "embedding gradient": (
            "z * (whole + embed) + z_red * block",
            {"z": z, "block": block, "whole": rank.embedding.whole},
        ),
        "embedding reduction": ("(z + z_red) * embed", {"z": z}),
    }
    for instant, (expression, values) in pieces.items():
        made = term(
            "gradients", ROOT_BACKWARD, "gradients of the rest", "z_acc * shard", _GROUPS, z_acc=z_acc, shard=shard
        )
        yield made.at(instant)
        values = {**values, "z_red": z_red, "embed": embed}
        yield term(
            "reduce_buffers", ROOT_BACKWARD, "gathered embedding and its gradient", expression, _GROUPS, **values
        ).at(instant)


def adapters(rank: RankModel) -> Iterator[MemoryTerm]:
    """The other half of each adapter's fp32 parameters, beside a 16-bit base: ``peft``'s ``autocast_adapter_dtype``."""
    if rank.spec.adapter.name != "none":
        z, shard, source = rank.dtypes.size("parameters"), rank.elements.optimizer, "peft, LoraLayer"
        yield term("parameters", ALWAYS, "fp32 adapters", "(4 - z_par) * shard", source, z_par=z, shard=shard)


def _casts(rank: RankModel) -> Iterator[MemoryTerm]:
    """Autocast's copies of LoRA's matrices: to the end of the forward pass, or until their product's backward pass."""
    if rank.engine.wide_adapters and rank.spec.adapter.low_rank:
        what, source, z = "autocast's copies of adapters", "torch/csrc autocast_mode.cpp, cached_cast", rank.engine.size
        saved = sum(ceil(each.count * each.elements.trained * (1 - each.recomputed_share)) for each in rank.blocks)
        backward = frozenset[Moment](("loss_backward", "block_backward"))
        for moments, w in ((FORWARD, rank.all_blocks.trained), (backward, saved)):
            yield term("gather_buffers", moments, what, "z * P", source, z=z, P=w)


def last_hidden_state(rank: RankModel) -> Iterator[MemoryTerm]:
    """The output of the last norm, which the model's output names while the loss is computed."""
    h, z = rank.spec.model.hidden_size, rank.engine.size
    source, what = "transformers, BaseModelOutputWithPast", "last hidden state"
    yield term("activations", ("output", "loss"), what, "z * h * tok", source, z=z, h=h, tok=rank.tokens)


def _loss(rank: RankModel) -> Iterator[MemoryTerm]:
    """Memory of TRL's loss besides its tile: a copy of the states whose labels count, and fp32 sums of gradients.

    The gradient of the output projection is added up in fp32, whole, and then cast to the weight's format.
    """
    if not rank.view.head or rank.spec.task.name == "reward":
        return
    yield from last_hidden_state(rank)
    h, tok, v = rank.spec.model.hidden_size, rank.tokens, rank.vocabulary
    made: Moment = "loss_backward"
    yield term("temporary", (made,), "fp32 gradient of the states", "4 * h * tok", SOURCE, h=h, tok=tok)
    head = max(rank.head.largest_trained, rank.embedding.largest_trained if rank.tied else 0)
    if head:
        yield term("temporary", (made,), "fp32 gradient of the output projection", "4 * w", SOURCE, w=head)
        if rank.engine.size < 4 and not rank.engine.autocast:
            z = rank.engine.size
            yield term("temporary", (made,), "cast of that gradient", "z * w", SOURCE, z=z, w=head)
    if rank.engine.autocast:
        z, rows, what = rank.engine.size, min(TILE[1], v), "cast of rows of the output projection"
        yield term("temporary", ("loss", made), what, "z * rows * h", SOURCE, z=z, rows=rows, h=h)


def _reference(rank: RankModel) -> Iterator[MemoryTerm]:
    """The reference model of a task that compares with it, whole or in shards, and gathered for its forward pass.

    An adapter switched off is the reference itself; answers that were computed before need none. FSDP2 moves it to the
    device whole, where the list of its parameters keeps them beside the first shards (``_move_states_to_device`` of
    ``torch/distributed/fsdp``; an H100 measured the same).
    """
    task, engine = rank.spec.task, engine_of(rank.spec)
    if not task.has_reference or task.precompute_reference or rank.spec.adapter.name != "none":
        return
    z, whole = rank.engine.size, rank.elements.whole
    sharded = engine == "fsdp" or (engine == "deepspeed" and rank.spec.zero.stage == 3)
    held = rank.elements.parameters if sharded else whole
    z_par = rank.dtypes.size("parameters")
    yield _named("parameters", (*ALWAYS,), "reference model", "z_par * P", z_par=z_par, P=held)
    if engine == "deepspeed" and sharded and rank.spec.shard_degree > 1:
        what, kept = "reference's weights that stay whole (stage3_param_persistence_threshold)", rank.elements.kept
        yield _named("gather_buffers", (*ALWAYS - LOAD,), what, "z * kept", z=z, kept=kept)
    if engine == "fsdp":
        unsharded = _named("parameters", ("load",), "reference model, whole", "z_par * P", z_par=z_par, P=whole)
        yield unsharded.at("sharding of the reference")
        # One rank alone has no output of an all-gather beside its weights (``backends.fsdp.overheads.gathered``).
        expression = "z * P" if rank.spec.shard_degree == 1 else "2 * z * P"
        yield _named("gather_buffers", ("loss",), "gathered reference model", expression, z=z, P=whole)
    if rank.engine.autocast:
        blocks = rank.all_blocks.unpacked
        what = "autocast's copies of the reference's weights"
        yield _named("gather_buffers", ("loss",), what, "z * P", z=z, P=blocks)


def _named(pile: Pile, moments: tuple[Moment, ...], what: str, expression: str, **values: Value) -> MemoryTerm:
    return term(pile, moments, what, expression, _REFERENCE, **values)
