"""The ends of the model over one micro-batch: the output projection and the loss, and the embedding."""

from __future__ import annotations

from functools import lru_cache

from launcher.estimate.speed import gemm
from launcher.estimate.speed.block import BlockPasses
from launcher.estimate.speed.passes import NOTHING, Pass
from launcher.estimate.speed.shape import Shape
from launcher.spec import ModelSpec


@lru_cache(maxsize=4096)
def head(
    model: ModelSpec,
    vocabulary: int,
    shape: Shape,
    *,
    trained: bool,
    split: bool,
    parallel_loss: bool,
    chunked: bool,
) -> BlockPasses:
    """The output projection and the loss: forward, backward, and what is computed again.

    Args:
        model: The model.
        vocabulary: Its padded vocabulary.
        shape: The rank's part of a micro-batch.
        trained: True if the projection gets a gradient.
        split: True if tensor parallel ranks share the projection.
        parallel_loss: True if they share the loss, too; else each has all logits.
        chunked: True if the loss runs over pieces of the sequence, each of which backward computes again.
    """
    n, m, k = -(-vocabulary // (shape.tensor if split else 1)), shape.tokens, model.hidden_size
    dtype = "bf16" if shape.dtype == "fp8" else shape.dtype
    card = shape.card
    forward = gemm.seconds(m, n, k, dtype, card)
    backward = gemm.seconds(m, k, n, dtype, card) + (gemm.seconds(n, k, m, dtype, card) if trained else 0.0)
    flops = 2.0 * m * n * k
    moved = loss_bytes(shape) * m * (n if parallel_loss or not split else vocabulary)
    seconds = card.memory_seconds(moved)
    ahead = Pass(products=forward, product_flops=flops, loss=seconds / 2, launches=10)
    behind = Pass(products=backward, product_flops=flops * (2 if trained else 1), loss=seconds / 2, launches=14)
    return BlockPasses(ahead, behind, ahead if chunked else NOTHING)


def loss_bytes(shape: Shape) -> float:
    """Bytes that the cross entropy reads and writes for one entry of one token's logits, both passes together.

    One kernel reads the logits and writes their gradient in their place. Else an fp32 copy is made (6), its softmax
    (8), the gradient (8) and that in the compute format (6); Megatron's vocabulary-parallel loss subtracts the maximum,
    exponentiates, sums and divides one after the other.
    """
    if shape.execution.fused_loss:
        return 4.0 * shape.size
    if shape.execution.compiled:
        return 14.0
    return 44.0 if shape.megatron else 28.0


def embedding(model: ModelSpec, shape: Shape) -> BlockPasses:
    """The token table: each token's row is read and written, and its gradient added in fp32."""
    moved = 2.0 * shape.tokens * model.hidden_size * shape.residual_size
    forward = Pass(moved=moved, memory=shape.card.memory_seconds(moved), launches=3)
    return BlockPasses(forward, forward.times(2.0), NOTHING)
