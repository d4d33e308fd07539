"""Calculon's transformer block: a list of layers, each with FLOPs and bytes of its forward and backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.speed.baselines._calculon_system import System


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A block on one processor: sequences, their length, widths, tensor parallel ranks, and 1 or t sequence ranks."""

    batch: int
    length: int
    hidden: int
    heads: int
    head_size: int
    feed_forward: float
    tensor: int
    sequence_ranks: int

    @property
    def whole(self) -> float:
        """Elements of the hidden states of all tensor parallel ranks."""
        return self.batch * self.length * self.hidden

    @property
    def split(self) -> float:
        """Elements of the hidden states between a reduce-scatter and an all-gather."""
        return self.whole / self.sequence_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One operation.

    Attributes:
        forward: FLOPs of the forward pass, and elements of 2 bytes that it reads and writes.
        backward: The same of the backward pass; of a product, of each of its two products.
        product: True if it runs on the matrix engine.
        core: True if selective recomputation makes it again.
    """

    forward: tuple[float, float]
    backward: tuple[float, float]
    product: bool = False
    core: bool = False

    def forward_seconds(self, system: System) -> float:
        """Seconds of the forward pass."""
        return self._seconds(system, *self.forward)

    def backward_seconds(self, system: System) -> float:
        """Seconds of the backward pass."""
        return (2 if self.product else 1) * self._seconds(system, *self.backward)

    def _seconds(self, system: System, flops: float, elements: float) -> float:
        seconds = system.matrix_seconds if self.product else system.vector_seconds
        return seconds(flops, 2 * elements)


def block(shape: Shape) -> tuple[Layer, ...]:
    """The layers of one block, in order."""
    return (*_attention(shape), *_feed_forward(shape))


def _attention(shape: Shape) -> Iterator[Layer]:
    tokens, width = shape.batch * shape.length, shape.heads * shape.head_size / shape.tensor
    sequences = shape.batch * shape.heads / shape.tensor
    scores = sequences * shape.length**2
    yield _fork(shape.split, users=2)
    yield _norm(shape.split)
    yield _fork(shape.whole, users=3)
    for _ in ("query", "key", "value"):
        yield _linear(tokens, shape.hidden, width)
    yield _batched(sequences, shape.length, shape.head_size, shape.length)
    yield _softmax(scores)
    yield _dropout(scores, core=True)
    yield _batched(sequences, shape.length, shape.length, shape.head_size)
    yield _linear(tokens, width, shape.hidden)
    yield _dropout(shape.split)
    yield _residual(shape.split)


def _feed_forward(shape: Shape) -> Iterator[Layer]:
    tokens, width = shape.batch * shape.length, shape.feed_forward / shape.tensor
    yield _fork(shape.split, users=2)
    yield _norm(shape.split)
    yield _linear(tokens, shape.hidden, width)
    yield _activation(tokens * width)
    yield _linear(tokens, width, shape.hidden)
    yield _dropout(shape.split)
    yield _residual(shape.split)


def _linear(rows: float, inner: float, columns: float) -> Layer:
    cost = (2 * rows * inner * columns, rows * inner + inner * columns + rows * columns)
    return Layer(forward=cost, backward=cost, product=True)


def _batched(count: float, rows: float, inner: float, columns: float) -> Layer:
    cost = (2 * count * rows * inner * columns, count * (rows * inner + inner * columns + rows * columns))
    return Layer(forward=cost, backward=cost, product=True, core=True)


def _softmax(elements: float) -> Layer:
    return Layer(forward=(5 * elements, 2 * elements), backward=(8 * elements, 3 * elements), core=True)


def _activation(elements: float) -> Layer:
    """GELU, fused with the product before it (``fused_activation``): it moves nothing of its own."""
    return Layer(forward=(8 * elements, 0), backward=(13 * elements, 0))


def _norm(elements: float) -> Layer:
    return Layer(forward=(9 * elements, 2 * elements), backward=(14 * elements, 3 * elements))


def _dropout(elements: float, *, core: bool = False) -> Layer:
    """The mask has a byte an element: half an element more to move."""
    return Layer(forward=(elements, 2.5 * elements), backward=(elements, 2.5 * elements), core=core)


def _residual(elements: float) -> Layer:
    return Layer(forward=(elements, 3 * elements), backward=(0, 0))


def _fork(elements: float, *, users: int) -> Layer:
    """A fork: free in the forward pass; the backward pass sums one gradient per reader."""
    return Layer(forward=(0, 0), backward=(users * elements, (users + 1) * elements))
