"""The block that runs now, in forward and backward passes, by hooks of the block, of its output and of its input."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


class Layers:
    """Numbers of blocks, counted from 0 as in the names of parameters."""

    def __init__(self) -> None:
        self.now: int | None = None  # The block that runs; None outside of blocks.
        self.on = False  # True while it matters where backward passes end, and ``passed`` is called.
        self.passed: Callable[[], None] = lambda: None  # Called wherever a block begins or ends.
        self._kept: list[RemovableHandle] = []

    def follow(self, blocks: Mapping[int, nn.Module]) -> None:
        """Follow these blocks from now on."""
        for number, block in blocks.items():
            block.register_forward_pre_hook(functools.partial(self._begin, number), with_kwargs=True)
            block.register_forward_hook(functools.partial(self._end, number), with_kwargs=True)

    def forget(self) -> None:
        """Take the hooks off tensors that outlive a pass, as a pipeline stage receives them."""
        for handle in self._kept:
            handle.remove()
        self._kept.clear()

    def _begin(self, number: int, block: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self.now = number
        if self.on:
            self.passed()
            self._hook((*inputs, *named.values()), lambda _: self._left(number))

    def _end(self, number: int, block: nn.Module, inputs: Any, named: Any, output: Any) -> None:
        self.now = None
        if self.on:
            self.passed()
        self._hook(output if isinstance(output, tuple) else (output,), lambda _: self._entered(number))

    def _hook(self, values: tuple[Any, ...], call: Any) -> None:
        """Call back when the gradient of the first of these tensors that has one is known."""
        for value in values:
            if isinstance(value, torch.Tensor) and value.requires_grad:
                handle = value.register_hook(call)  # type: ignore[no-untyped-call]
                if value.is_leaf:
                    self._kept.append(handle)
                return

    def _entered(self, number: int) -> None:
        if self.on:
            self.passed()
        self.now = number

    def _left(self, number: int) -> None:
        """A block's input is the output of the one before, whose hook comes first and stays."""
        if self.now == number:
            self.passed()
            self.now = None
