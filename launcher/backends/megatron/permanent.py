"""Buffers of Megatron-core and Transformer Engine that stay from one step to the next, beside the model states."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from launcher.backends.megatron.implementation import Implementation
from launcher.base.units import MIB
from launcher.estimate.memory.moments import ALWAYS, BETWEEN_PASSES, TRAINING
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import RankModel
from launcher.spec.hardware import HOPPER

TRANSFORMER_ENGINE_WORKSPACE = {True: 32 * MIB, False: 4 * MIB}
"""``get_cublas_workspace_size_bytes`` of Transformer Engine: 32 MiB from compute capability 9.0 on, else 4 MiB."""

GROUPED_STREAMS = 4
"""``_num_cublas_streams`` of Transformer Engine: a grouped product has a workspace for each of its streams."""

OVERLAP_STREAMS = 3
"""``_NUM_MAX_UB_STREAMS`` of Transformer Engine: with ``--tp-comm-overlap`` the workspace is so many in one."""


def workspaces(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """Transformer Engine's workspaces inside torch's allocator: one, and four more where experts are grouped.

    Three in place of one where tensor parallel communication overlaps with products (``initialize_ub``).

    Megatron-core's own layers meet it in the router of experts alone (``transformer/moe/moe_utils.py``).
    """
    if how.transformer_engine or (rank.cuda and rank.spec.model.num_experts):
        new = rank.spec.hardware.effective_capability >= HOPPER
        number = OVERLAP_STREAMS if rank.spec.backend.argument("tp-comm-overlap") else 1
        number += GROUPED_STREAMS if how.grouped else 0
        size, source = TRANSFORMER_ENGINE_WORKSPACE[new], "transformer_engine/pytorch/module/base.py"
        yield term("workspace", ALWAYS, "workspaces of Transformer Engine", "n * size", source, n=number, size=size)


def global_buffer(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """Megatron-core's buffer ``mpu``, as large as its largest use: ``max(size h tok, size a/t s^2 b)``.

    Its own linears gather the sequence into it (``tensor_parallel/layers.py``; the output projection is one of them in
    any case), and its own attention starts its scores from it (``transformer/dot_product_attention.py``).
    """
    spec, h, a = rank.spec, 0, 0
    if spec.parallel.sequence and spec.parallel.tensor > 1 and (rank.view.head or not how.transformer_engine):
        h = spec.model.hidden_size
    if not how.transformer_engine and not spec.model.kv_lora_rank:
        a = ceil(spec.model.num_attention_heads * rank.view.tensor)
    if h or a:
        what, source, z, s = (
            "Megatron-core's global buffer",
            "Megatron-core core/utils.py",
            rank.engine.size,
            spec.sequence_length,
        )
        yield term(
            "gather_buffers", TRAINING, what, "z * max(h, a * s) * tok", source, z=z, h=h, a=a, s=s, tok=rank.tokens
        )


def unused_gradients(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """A gradient that nobody reads, for each shape of a weight: ``size`` bytes an element.

    Where products accumulate into ``main_grad`` themselves, autograd still wants a gradient; Transformer Engine keeps
    one of each shape (``module/base.py``, ``get_dummy_wgrad``).
    """
    if how.transformer_engine and how.fused_gradients:
        experts = max(1, ceil(rank.spec.model.num_experts * rank.view.experts))
        block = rank.largest_block
        elements = block.dense + block.expert // experts
        if rank.view.head:
            elements += ceil(rank.vocabulary * rank.view.tensor) * rank.spec.model.hidden_size
        what, source = "unread gradients of one weight of each shape", "transformer_engine get_dummy_wgrad"
        yield term("temporary", TRAINING, what, "z * w", source, z=rank.engine.size, w=elements)


def last_inputs(rank: RankModel) -> Iterator[MemoryTerm]:
    """The last input that a stage received and its gradient, ``2 x size h tok``, of each of its model chunks.

    ``TransformerBlock.set_input_tensor`` holds it until the next one comes (``transformer/transformer_block.py``).
    """
    if rank.view.stage:
        what, source = "inputs of model chunks and their gradients", "Megatron-core transformer_block.py"
        h, n = rank.spec.model.hidden_size * rank.view.residual, rank.spec.parallel.virtual_pipeline
        z_res, tok, expression = rank.engine.residual_size, rank.tokens, "2 * n * ceil(z_res * h * tok)"
        yield term("temporary", BETWEEN_PASSES, what, expression, source, n=n, z_res=z_res, h=h, tok=tok)
