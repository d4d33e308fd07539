"""Buffers and temporaries of Megatron-core with Transformer Engine: of one step, and those that stay.

Terms of sharded optimizers are in ``sharded``, those of recomputed blocks in ``recomputation``.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from math import ceil, prod

from launcher.backends.megatron import layout, quantised, recomputation, sharded, traits
from launcher.backends.megatron.implementation import Implementation, fsdp, implementation
from launcher.base.units import MIB
from launcher.estimate.memory import activations, device
from launcher.estimate.memory.moments import (
    ALWAYS,
    BACKWARD_FROM_BLOCKS,
    BEFORE_BLOCKS_BACKWARD,
    BETWEEN_PASSES,
    FORWARD,
    PASSES,
    TRAINING,
    Moments,
)
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.counts import block_weights
from launcher.estimate.rank.family import Family
from launcher.estimate.rank.model import RankModel
from launcher.estimate.rank.stages import flow_of, forwards
from launcher.estimate.rank.tensors import SavedTensor
from launcher.estimate.rank.view import ONE, rounded_up
from launcher.spec import ModelSpec, RunSpec
from launcher.spec.hardware import HOPPER

TRANSFORMER_ENGINE_WORKSPACE = {True: 32 * MIB, False: 4 * MIB}
"""``get_cublas_workspace_size_bytes`` of Transformer Engine: 32 MiB from compute capability 9.0 on, else 4 MiB."""

GROUPED_STREAMS = 4
"""``_num_cublas_streams`` of Transformer Engine: a grouped product has a workspace for each of its streams."""

OVERLAP_STREAMS = 3
"""``_NUM_MAX_UB_STREAMS`` of Transformer Engine: products that overlap with communication have so many in one."""

USERBUFFERS = 10
"""Buffers that ``initialize_ub`` of Transformer Engine makes with its default methods: for the forward pass of four
linears and, of both inputs and weights, for their backward passes (``qkv_fprop``, ..., ``fc1_wgrad``)."""

_DEEPEP_NODE = 8  # Ranks that DeepEP takes to share NVLink (``NUM_MAX_NVL_PEERS``).
_DEEPEP_TOKENS = (256, 288, 480, 560, 720)
_DEEPEP_RANKS = (8, 64, 96, 128, 160)
"""Tokens that a channel of DeepEP receives from each rank of a node, for groups of up to so many ranks
(``Buffer.get_dispatch_config``; ``get_combine_config`` has the same)."""

_BLOCK: Moments = frozenset(("forward", "block_backward", "next_block_backward", "second_layer_backward"))
"""A block runs, forward or backward, and its input is whole."""

UNTIL_NEXT_BLOCK: Moments = BEFORE_BLOCKS_BACKWARD | {"block_backward", "next_block_backward"}
"""From forward to the backward pass of the first blocks."""


def overheads(rank: RankModel) -> Iterable[MemoryTerm]:
    """All terms that Megatron-core adds."""
    how = implementation(rank.spec)
    yield from workspaces(rank, how)
    yield from quantised.weights(rank)
    yield from global_buffer(rank, how)
    yield from unused_gradients(rank, how)
    yield from projection_gradient(rank, how)
    yield from communicators(rank)
    yield from exchange_buffers(rank)
    yield from last_inputs(rank)
    yield from messages(rank)
    yield from exchanged_tokens(rank, how)
    yield from gathered_sequence(rank, how)
    yield from attention_mask(rank, how)
    yield from embedding_dropout(rank)
    yield from deferred_gradients(rank, how)
    for terms in (recomputation.held, sharded.distributed, unsplit, graph_inputs, sharded.overheads, muon):
        yield from terms(rank)


def muon(rank: RankModel) -> Iterator[MemoryTerm]:
    """Muon's step: a matrix's update in fp32 and both its scalings, beside the update of the matrix before, or AdamW's.

    ``OrthogonalizedOptimizer.step`` of emerging_optimizers holds an update until the next is made. Gate and up are one
    matrix, as are query, key and value, which come before them. AdamW steps what is outside the blocks.
    """
    spec, model = rank.spec, rank.spec.model
    if spec.optimizer.name != "muon":
        return
    joined = rank.largest_block.largest_trained * (1 + model.gated)
    heads = (model.num_attention_heads + 2 * model.key_value_heads) * model.head_size
    w = ceil(model.hidden_size * heads * rank.view.tensor) if model.gated and not model.num_experts else joined
    n, loop = 4 if spec.backend.argument("muon-nesterov") else 3, rank.engine.optimizer != "fused"
    table, head = (part.largest_shard if loop else 0 for part in (rank.embedding, rank.head))
    what, source = "a matrix's step by muon", "Megatron-core optimizer/emerging_optimizers.py"
    expression = "4 * max(n * joined + w, table + max(table, 2 * head))"
    yield term("temporary", ("step",), what, expression, source, n=n, w=w, joined=joined, table=table, head=head)


def graph_inputs(rank: RankModel) -> Iterator[MemoryTerm]:
    """Inputs of CUDA graphs: hidden states and a mask, a byte for each pair of positions, of every graph in flight.

    Graphs of a layer and micro-batch whose backward pass is over hand their inputs on (``_get_sample_arguments`` of
    ``transformer/cuda_graphs.py``). What a graph saves lies in its pool, which torch's counter of allocated bytes
    leaves out and the card does not: it is counted as without graphs.
    """
    if rank.spec.train.cuda_graphs == "none":
        return
    spec, view = rank.spec, rank.view
    n = ceil(view.in_flight * (rank.layers - view.predicted) + view.predicted_in_flight * view.predicted)
    what, source = "static inputs of CUDA graphs", "Megatron-core transformer/cuda_graphs.py"
    h, b = spec.model.hidden_size * view.residual, spec.micro_batch_size
    s, c = spec.sequence_length, spec.parallel.context
    expression, z, tok = "n * ceil(z * h * tok) + n * b * s * s // c", rank.engine.size, rank.tokens
    yield term("workspace", TRAINING, what, expression, source, n=n, z=z, h=h, tok=tok, b=b, s=s, c=c)


def gathered_sequence(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """The sequence that sequence parallelism gathers before a linear and again for its weight gradient: ``size h``.

    arXiv:2205.05198, section 4.2.2: the gathered input is not saved. The backward pass of the MLP's second linear has
    the gradient of the activation alone beside it, half of what a gated one's own backward pass has, at which the
    gathered tensor is gone. Megatron-core's own linears gather into the permanent buffer.
    """
    if rank.spec.parallel.sequence and rank.spec.parallel.tensor > 1 and how.transformer_engine:
        source = "arXiv:2205.05198, section 4.2.2"
        what, model, quantised = "gathered input of a linear", rank.spec.model, rank.engine.quantised
        z, h, tok = rank.engine.size, model.hidden_size, rank.tokens
        z_in = z if quantised is None else quantised.columns
        yield term("gather_buffers", _BLOCK & FORWARD, what, "ceil(z_in * h * tok)", source, z_in=z_in, h=h, tok=tok)
        for moments, kind in activations.running_blocks(rank):
            gated = model.gated and not kind.elements.expert
            half = ceil(model.intermediate_size * rank.view.tensor) if gated else 0
            values = {"z_in": z_in, "z": z, "h": h, "outputs": half, "tok": tok}
            expression = "ceil(z_in * h * tok) - z * outputs * tok"
            yield term("gather_buffers", moments & (_BLOCK - FORWARD), what, expression, source, **values)


def attention_mask(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """The mask of a micro-batch, a byte for each pair of positions, ``b s^2``, and the part of a context-parallel rank.

    ``create_attention_mask_in_dataloader`` of Megatron-core's GPT data set; only the first and the last stage get it.
    """
    if (rank.view.embedding or rank.view.head) and how.attention_mask:
        b, s, c = rank.spec.micro_batch_size, rank.spec.sequence_length, rank.spec.parallel.context
        what, source = "attention mask of positions", "Megatron-core datasets/gpt_dataset.py"
        if c > 1:
            yield term("temporary", FORWARD, what, "b * s * s + b * s * s // c", source, b=b, s=s, c=c)
        else:
            yield term("temporary", FORWARD, what, "b * s * s", source, b=b, s=s)


def embedding_dropout(rank: RankModel) -> Iterator[MemoryTerm]:
    """The mask of the dropout after the embedding, a byte an element, of every micro-batch in flight."""
    if rank.view.embedding and rank.spec.model.dropout:
        what, source = "mask of the embedding's dropout", "arXiv:2205.05198, section 4.3"
        h = rank.spec.model.hidden_size * rank.view.residual
        yield term(
            "activations", UNTIL_NEXT_BLOCK, what, "f * h * tok", source, f=rank.view.in_flight, h=h, tok=rank.tokens
        )


def deferred_gradients(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """Input and output gradient of the output projection, of micro-batches whose weight gradient is computed later.

    The input is kept with its graph, which begins with what the stage received and holds that and its gradient: those
    of the last micro-batch are counted with the messages (:func:`messages`).
    """
    if rank.view.head and how.deferred:
        what, source = "gradients of logits, inputs of the projection", "Megatron-core tensor_parallel/layers.py"
        entries, h = ceil(rank.vocabulary * rank.view.tensor), rank.spec.model.hidden_size * rank.view.residual
        z, n, tok, z_res = rank.engine.size, how.deferred, rank.tokens, rank.engine.residual_size
        yield term("logits", UNTIL_NEXT_BLOCK, what, "n * z * (V + h) * tok", source, n=n, z=z, V=entries, h=h, tok=tok)
        if (older := min(n, rank.spec.gradient_accumulation - 2)) > 0:
            what, expression = (
                "inputs of the stage that these hold, and their gradients",
                "2 * n * ceil(z_res * h * tok)",
            )
            yield term("temporary", UNTIL_NEXT_BLOCK, what, expression, source, n=older, z_res=z_res, h=h, tok=tok)


def unsplit(rank: RankModel) -> Iterator[MemoryTerm]:
    """Unused ends of the segments of large tensors allocated before any memory was freed (``device.unsplit``).

    Those are buffers of parameters and gradients, one for routed experts, and without the distributed optimizer the
    token table and its main copy. Left out: buffers of several model chunks.
    """
    spec, e = rank.spec, rank.elements
    if not rank.cuda or spec.zero.stage > 1 or spec.train.allocator != "default":
        return
    z_par, z_acc = rank.dtypes.size("parameters"), rank.dtypes.size("accumulate")
    z_master = rank.engine.master_size or rank.dtypes.size("master")
    apart = spec.model.num_experts and spec.parallel.expert > 1
    buffers = (e.dense, e.expert) if apart else (e.whole,)
    sizes = [z_acc * size for size in buffers] if spec.parallel.virtual_pipeline == 1 else []
    if spec.zero.stage == 1:
        sizes += [z_par * size for size in buffers] if sizes else []
    else:
        tables = [part.largest for part in (rank.embedding, rank.head) if part.matrices]
        sizes += [z * table for table in tables for z in (z_par, z_master)]
    what, rests = "rests of segments, too small to split off", sum(map(device.unsplit, sizes))
    yield term("workspace", ALWAYS, what, "rests", "torch CUDACachingAllocator.cpp, should_split", rests=rests)


def communicators(rank: RankModel) -> Iterator[MemoryTerm]:
    """NCCL's communicators, and buffers of ``--tp-comm-overlap``, each of a micro-batch's residual stream.

    Megatron-LM asks for the shape ``(s b / c, h)`` (``training/initialize.py``). Counted from the sources, in 16 bits;
    fp8 makes some of them half as large. No run with them was measured.
    """
    if rank.cuda:
        found = layout.groups(rank)
        yield device.of_groups(several := sum(ranks > 1 for ranks in found), len(found) - several)
    if rank.cuda and rank.spec.backend.argument("tp-comm-overlap"):
        what, source = "user buffers of tensor parallel products", "transformer_engine/pytorch/module/base.py"
        h, tok = rank.spec.model.hidden_size, rank.tokens
        yield term("communicators", ALWAYS, what, "n * 2 * h * tok", source, n=USERBUFFERS, h=h, tok=tok)


def exchange_buffers(rank: RankModel) -> Iterator[MemoryTerm]:
    """DeepEP's buffer for NVLink and, over several nodes, that for the network, outside of torch's allocator.

    ``get_buffer`` of Megatron-core's ``transformer/moe/fused_a2a.py`` has one for all layers, as large as DeepEP's own
    hints (``get_nvl_buffer_size_hint`` and ``get_rdma_buffer_size_hint`` of ``csrc/config.hpp``, called as built by
    sgl-deep-ep 0.1.2): of each channel, half of its multiprocessors, and each rank so many tokens, with an index of 8
    bytes and a probability and a scale of 4 for 128 choices, and the token's source. Left out: NVSHMEM's own heap.
    """
    spec, parallel = rank.spec, rank.spec.parallel
    n = parallel.expert * (parallel.expert_tensor or parallel.tensor)
    routed = any(kind.elements.expert for kind in rank.blocks)
    if not rank.cuda or n == 1 or not routed or traits.dispatcher(spec.backend) != "deepep":
        return
    sms = spec.backend.count("moe-flex-dispatcher-num-sms") or spec.backend.count("moe-deepep-num-sms") or 20
    ch, nodes, peers = sms // 2, max(n // _DEEPEP_NODE, 1), min(n, _DEEPEP_NODE)
    tok = _DEEPEP_TOKENS[bisect_left(_DEEPEP_RANKS, min(n, _DEEPEP_RANKS[-1]))]
    row = spec.model.hidden_size * max(rank.engine.size, 2) + 128 * (8 + 4 + 4) + 8
    what, source = "DeepEP's buffers", "DeepEP csrc/config.hpp"
    expression = "128 * ceil(ch * peers * (4 * (2 * nodes + 3) + tok * row) / 128)"
    yield term("communicators", ALWAYS, what, expression, source, ch=ch, peers=peers, nodes=nodes, tok=tok, row=row)
    if nodes > 1:
        expression = "128 * ceil(2 * ch * nodes * (72 + 128 * (row + 16)) / 128)"
        yield term("communicators", ALWAYS, f"{what} of the network", expression, source, ch=ch, nodes=nodes, row=row)


def workspaces(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """Transformer Engine's workspaces inside torch's allocator: one, and four more where experts are grouped.

    Three more in one where tensor parallel communication overlaps with products: each kind of product has its own
    (``get_cublas_workspace`` of ``cpp_extensions/gemm.py``, kept by its arguments).

    Megatron-core's own layers meet it in the router of experts alone (``transformer/moe/moe_utils.py``).
    """
    if how.transformer_engine or (rank.cuda and rank.spec.model.num_experts):
        new = rank.spec.hardware.effective_capability >= HOPPER
        number = 1 + (OVERLAP_STREAMS if rank.spec.backend.argument("tp-comm-overlap") else 0)
        number += GROUPED_STREAMS if how.grouped else 0
        size, source = TRANSFORMER_ENGINE_WORKSPACE[new], "transformer_engine/pytorch/module/base.py"
        yield term("workspace", ALWAYS, "workspaces of Transformer Engine", "n * size", source, n=number, size=size)


def global_buffer(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """Megatron-core's buffer ``mpu``, as large as its largest use: ``max(size h tok, size a/t s^2 b)``.

    Its own linears gather the sequence into it (``tensor_parallel/layers.py``; the output projection is one of them in
    any case), its own attention starts its scores from it (``transformer/dot_product_attention.py``), and
    ``MoEAllGatherTokenDispatcher`` gathers the tokens of all ranks of experts (``use_global_buffer``).
    """
    spec, h, a = rank.spec, 0, 0
    if rank.elements.expert and spec.backend.argument("moe-token-dispatcher-type") == "allgather":
        ranks = spec.parallel.expert * (spec.parallel.expert_tensor or spec.parallel.tensor)
        h = ceil(spec.model.hidden_size * rank.view.residual * ranks) if ranks > 1 else 0
    if spec.parallel.sequence and spec.parallel.tensor > 1 and (rank.view.head or not how.transformer_engine):
        h = max(h, spec.model.hidden_size)
    if not how.transformer_engine and not spec.model.kv_lora_rank:
        a = ceil(spec.model.num_attention_heads * rank.view.tensor)
    if h or a:
        what, expression = "Megatron-core's global buffer", "z * max(h, a * s) * tok"
        z, s, tok, source = rank.engine.size, spec.sequence_length, rank.tokens, "Megatron-core core/utils.py"
        yield term("gather_buffers", TRAINING, what, expression, source, z=z, h=h, a=a, s=s, tok=tok)


def unused_gradients(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """A gradient that nobody reads, for each shape of a weight: ``size`` bytes an element.

    Where products accumulate into ``main_grad`` themselves, autograd still wants a gradient; Transformer Engine keeps
    one of each shape (``module/base.py``, ``get_dummy_wgrad``).
    """
    if how.transformer_engine and how.fused_gradients:
        layers = tuple(alike.layer for alike in rank.counts.blocks)
        elements = _of_each_name(rank.family, rank.spec.model, layers, rank.view.tensor, rank.view.expert_tensor)
        if rank.view.head:
            elements += ceil(rank.vocabulary * rank.view.tensor) * rank.spec.model.hidden_size
        what, source = "unread gradients of one weight of each shape", "transformer_engine get_dummy_wgrad"
        yield term("temporary", TRAINING, what, "z * w", source, z=rank.engine.size, w=elements)


def projection_gradient(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """Gradient of the output projection before it is added to its buffer, where the product does not add it itself.

    A tied one waits for the token table's, with which autograd adds it up (``tensor_parallel/layers.py``).
    """
    if how.fused_gradients or fsdp(rank.spec) or not (rank.view.head and rank.head.trained + rank.embedding.trained):
        return
    what, source = "gradient of the output projection", "Megatron-core tensor_parallel/layers.py"
    values = {"z": rank.engine.size, "V": ceil(rank.vocabulary * rank.view.tensor), "h": rank.spec.model.hidden_size}
    yield term("gradients", ("loss_backward",), what, "z * V * h", source, **values).at("product")
    if rank.spec.model.tie_word_embeddings and rank.view.embedding:
        yield term("gradients", BACKWARD_FROM_BLOCKS, what, "z * V * h", source, **values)


@lru_cache(maxsize=1024)
def _of_each_name(
    family: Family, model: ModelSpec, layers: tuple[int, ...], tensor: Fraction, expert_tensor: Fraction
) -> int:
    """Elements on a rank of one weight of each name that one of these layers has, of experts of one."""
    shares, found = {"replicated": ONE, "tensor": tensor, "expert": expert_tensor}, dict[str, int]()
    for layer in layers:
        for weight in block_weights(family, model, layer):
            found[weight.name] = rounded_up(prod(weight.shape), shares[weight.split])
    return sum(found.values())


def exchanged_tokens(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """Copies of the routed tokens at the end of a layer with experts, ``n k h``, beside the shared experts' output.

    ``MoELayer.forward`` (``transformer/moe/moe_layer.py``) holds the tokens as they were sorted and as they came, which
    are one without an exchange, or the expert's saved input where a rank has one expert; with the experts' output they
    are sorted back and exchanged back, each a copy beside its source.
    """
    kind, model = next(reversed(rank.blocks), None), rank.spec.model
    once = rank.spec.backend.argument("moe-token-dispatcher-type") == "flex"  # Its buffers are another library's.
    if kind is None or not kind.elements.expert or not how.transformer_engine or once:
        return
    exchanged, several = rank.spec.parallel.expert > 1, ceil(model.num_experts * rank.view.experts) > 1
    n = 2 + (exchanged and several) + (exchanged or several)
    shared = 1 if model.shared_width else 0
    rows = [
        SavedTensor(name="routed tokens", bytes=n * rank.engine.size * model.hidden_size, share="routed", part="moe"),
        SavedTensor(name="shared", bytes=shared * rank.engine.size * model.hidden_size, share="residual", part="moe"),
    ]
    what, source = "routed tokens and outputs of experts", "Megatron-core transformer/moe/moe_layer.py"
    yield term("temporary", ("forward",), what, "k * tok", source, k=rank.token_bytes(rows), tok=rank.tokens)


def messages(rank: RankModel) -> Iterator[MemoryTerm]:
    """Tensors of stages' messages that the schedule still names, of the residual stream's shape.

    ``forward_backward_pipelining_without_interleaving`` (``pipeline_parallel/schedules.py``) keeps the gradient that it
    sent until the next one, and the one that it received; until a forward pass ends, the loss included, the output that
    it still names holds the graph of the last micro-batch, and so its input. Once the pipeline is full, which needs
    more micro-batches than the stage has in flight. With interleaving see :func:`_interleaved_messages`.
    """
    view, spec, chunks = rank.view, rank.spec, rank.spec.parallel.virtual_pipeline
    held = view.in_flight if chunks == 1 else Fraction(forwards(flow_of(spec), view.stage), chunks)
    if view.stages == 1 or spec.gradient_accumulation <= held:
        return
    first, last = view.stage == 0, view.stage == view.stages - 1
    numbers = (0 if first else 2) + (0 if last else 1), 0 if first else 1
    if chunks > 1:
        numbers = _interleaved_messages(spec, first=first, last=last)
    what, source = "messages of pipeline stages", "Megatron-core pipeline_parallel/schedules.py"
    h, tok, z_res = rank.spec.model.hidden_size * view.residual, rank.tokens, rank.engine.residual_size
    for moments, n in zip((FORWARD, PASSES - FORWARD), numbers, strict=True):
        if n:
            yield term("temporary", moments, what, "n * ceil(z_res * h * tok)", source, n=n, z_res=z_res, h=h, tok=tok)


def _interleaved_messages(spec: RunSpec, *, first: bool, last: bool) -> tuple[int, int]:
    """Tensors that ``forward_backward_pipelining_with_interleaving`` still names in forward and in backward passes.

    The gradient sent last, and one received ahead, by the last stage where rounds are longer than the pipeline. Where
    messages overlap, ``input_tensor`` names the last input of the warm-up to the end of the step, with its gradient
    (not the first stage's, which has none); the next input is received, and the last output let go, after a backward
    pass.
    """
    ahead = not last or flow_of(spec).group > spec.parallel.pipeline
    if not layout.overlaps_messages(spec):
        return 1 + ahead, 1
    kept = 0 if first or spec.backend.argument("overlap-p2p-communication-warmup-flush") else 2
    return kept + 1 + ahead, kept + 2 + (not last)


def last_inputs(rank: RankModel) -> Iterator[MemoryTerm]:
    """The last input that a stage received and its gradient, ``2 x size h tok``, of each of its model chunks.

    ``TransformerBlock.set_input_tensor`` holds it until the next one comes (``transformer/transformer_block.py``).
    """
    if rank.view.stage:
        what, source = "inputs of model chunks and their gradients", "Megatron-core transformer_block.py"
        h, n = rank.spec.model.hidden_size * rank.view.residual, rank.spec.parallel.virtual_pipeline
        z_res, tok, expression = rank.engine.residual_size, rank.tokens, "2 * n * ceil(z_res * h * tok)"
        yield term("temporary", BETWEEN_PASSES, what, expression, source, n=n, z_res=z_res, h=h, tok=tok)
