"""The kinds of parts that layers are built from, one module each: attention, MLP, experts, state space and so on.

A description of a model type names them (``description.Step``); :class:`Kind` is their protocol. A kind is one file of
this folder, without any list.
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
        """A size of a mixer by name (:func:`values.size`)."""
        return values.size(self.model, self.found, word)

    def pairs(self, module: str, inputs: int, sizes: Mapping[str, int]) -> list[Weight]:
        """The low-rank pairs of linear layers beside those of a shared module, whose outputs have these ``sizes``.

        Each use of the shared module has its own pairs, numbered by its layer among those that use such a module.
        """
        rank, rows = self.size("rank"), list[Weight]()
        use = values.named(self.model)[: self.layer].count("hybrid")
        for name, pairs in self.found.beside.items():
            place = f"{module}.{pairs}.{use}"
            rows += linear(f"{place}.0", rank, inputs, bias=False, split=False)
            rows += linear(f"{place}.1", sizes[name], rank, bias=False, split=False)
        return rows

    def between_pairs(self, engine: EngineTraits) -> list[SavedTensor]:
        """The input that autograd saves for the second linear layers of :meth:`pairs`."""
        size, names = engine.size * self.size("rank"), tuple(self.found.beside.values())
        row = SavedTensor("between linears of low rank", size * len(names), "token", "adapter", only_readers=True)
        return [replace(row, readers=names)] if names else []


class Kind(Protocol):
    """A module of this folder; bytes are per token. A mixer also has the names of :class:`Mixer`."""

    MODULE: Module  # Its name in ``checkpointing.modules``; ``attention`` is timed by its kernel.

    def weights(self, part: Part) -> list[Weight]:
        """Its parameters, each with its split among tensor parallel ranks."""

    def readers(self, part: Part) -> tuple[str, ...]:
        """The linear layers that read the output of the norm before it."""

    def saved(self, part: Part, engine: EngineTraits) -> list[SavedTensor]:
        """Tensors that its forward pass saves, beside those of the norm before it and the norm's output."""

    def gradients(self, part: Part, engine: EngineTraits) -> list[SavedTensor]:
        """Tensors that its backward pass holds at its peak beyond those that are still saved."""


@runtime_checkable
class Mixer(Kind, Protocol):
    """A kind whose GPU kernels come from separate packages."""

    PACKAGES: tuple[str, ...]  # These packages.
    UNWRAPPED: tuple[str, ...]  # Its linear layers that no adapter may wrap.

    def scans(self, part: Part, size: int) -> Scans:
        """The scan kernels per token, which multiply no weight, by the bytes of an element."""


@cache
def of(word: str) -> Kind:
    """The kind of that name."""
    return cast("Kind", import_module(f"{__name__}.{word}"))


def all_of(words: Sequence[str]) -> list[Kind]:
    """The kinds of these names."""
    return [of(word) for word in words]
