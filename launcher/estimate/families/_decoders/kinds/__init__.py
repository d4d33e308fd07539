"""The kinds of what layers are made of: attention, an MLP, experts, a state space, linear attention; one module each.

A description of a model type names them (``description.Step``); :class:`Kind` says what is asked of one. A kind is one
file of this folder and no list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import NamedTuple, Protocol, cast, runtime_checkable

from launcher.estimate.families._decoders import values
from launcher.estimate.families._decoders.description import Decoder
from launcher.estimate.families._weights import linear
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Module, SavedTensor, Scans, Weight
from launcher.spec import ModelSpec


class Part(NamedTuple):
    """A part of one layer of a model."""

    model: ModelSpec
    found: Decoder  # The description of its type.
    layer: int

    def size(self, word: str) -> int:
        """A size of a mixer by its word (:func:`values.size`)."""
        return values.size(self.model, self.found, word)

    def pairs(self, module: str, inputs: int, sizes: Mapping[str, int]) -> list[Weight]:
        """Two linears of low rank beside each linear of a module that has them, whose outputs have these sizes.

        Each use of a shared module has its own, by the number of its layer among those that have such a module.
        """
        rank, rows = self.size("rank"), list[Weight]()
        use = values.named(self.model)[: self.layer].count("hybrid")
        for name, pairs in self.found.beside.items():
            place = f"{module}.{pairs}.{use}"
            rows += linear(f"{place}.0", rank, inputs, bias=False, split=False)
            rows += linear(f"{place}.1", sizes[name], rank, bias=False, split=False)
        return rows

    def between_pairs(self, engine: EngineTraits) -> list[SavedTensor]:
        """The input that autograd saves of the second linears of :meth:`pairs`."""
        size, names = engine.size * self.size("rank"), tuple(self.found.beside.values())
        row = SavedTensor("between linears of low rank", size * len(names), "token", "adapter", only_readers=True)
        return [replace(row, readers=names)] if names else []


class Kind(Protocol):
    """A module of this folder; bytes are those of one token. One that is a mixer has the names of :class:`Mixer`."""

    MODULE: Module  # Its word in ``checkpointing.modules``: ``attention`` has the time of its kernel.

    def weights(self, part: Part) -> list[Weight]:
        """Its parameters, each with its split among tensor parallel ranks."""

    def readers(self, part: Part) -> tuple[str, ...]:
        """The linears that read the output of the norm before it."""

    def saved(self, part: Part, engine: EngineTraits) -> list[SavedTensor]:
        """Tensors that its forward pass saves, beside those of the norm before it and the norm's output."""

    def gradients(self, part: Part, engine: EngineTraits) -> list[SavedTensor]:
        """Tensors that its backward pass has at most beyond those that are saved until then."""


@runtime_checkable
class Mixer(Kind, Protocol):
    """A kind whose kernels on a GPU come from packages of their own."""

    PACKAGES: tuple[str, ...]  # These packages.
    UNWRAPPED: tuple[str, ...]  # Its linears that no adapter may wrap.

    def scans(self, part: Part, size: int) -> Scans:
        """The kernels of one token that multiply no weight, by the bytes of an element."""


@cache
def of(word: str) -> Kind:
    """The kind of that name."""
    return cast("Kind", import_module(f"{__name__}.{word}"))


def all_of(words: Sequence[str]) -> list[Kind]:
    """The kinds of these names."""
    return [of(word) for word in words]
