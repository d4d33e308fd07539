"""The protocol between a model family and the memory model; a family is a module of ``launcher.families``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from launcher.rank.engine import EngineTraits
from launcher.rank.tensors import SavedTensor, Weight
from launcher.spec import ModelSpec


class Family(Protocol):
    """A module of ``launcher.families``: pure functions, whose answers are kept by the module and the model."""

    def __hash__(self) -> int:
        """Hash of the module itself."""
        ...

    def embedding(self, model: ModelSpec, vocabulary: int) -> Sequence[Weight]:
        """Weights before the first block."""
        ...

    def block(self, model: ModelSpec, layer: int) -> Sequence[Weight]:
        """Weights of one block."""
        ...

    def head(self, model: ModelSpec, vocabulary: int) -> Sequence[Weight]:
        """Weights after the last block; the output projection is absent where it is the embedding."""
        ...

    def kind(self, model: ModelSpec, layer: int) -> str:
        """Name of a block's kind: blocks of the same kind are equal."""
        ...

    def saved(self, model: ModelSpec, layer: int, engine: EngineTraits) -> Sequence[SavedTensor]:
        """Tensors that the forward pass of one block saves."""
        ...

    def after_blocks(self, model: ModelSpec, engine: EngineTraits) -> Sequence[SavedTensor]:
        """Tensors saved between the last block and the output projection."""
        ...

    def backward_extra(self, model: ModelSpec, layer: int, engine: EngineTraits) -> Sequence[SavedTensor]:
        """Tensors that the backward pass of one block adds at its peak, beyond those that the forward pass saved."""
        ...

    def first_norm_backward(self, model: ModelSpec, engine: EngineTraits) -> Sequence[SavedTensor]:
        """Tensors alive at the end of the backward pass of one block, in its first norm."""
        ...
