"""Experts in a loop over those that a token has met: without values each has met equally many."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from launcher.worker import replaced


class _Place(int):
    """A number that is asked as a tensor of one element is."""

    def __getitem__(self, _: object) -> _Place:
        return self

    def item(self) -> int:
        """It."""
        return int(self)


@contextlib.contextmanager
def evenly(*, unused: int = 0) -> Iterator[None]:
    """Let ``nonzero`` find every expert but the last ``unused``, and ``where`` of one argument one's share of all."""
    found, where = torch.Tensor.nonzero, torch.where
    experts = [1]

    def nonzero(mask: torch.Tensor, **options: Any) -> Any:
        """All places of a mask of one dimension, as numbers: a tensor without values would be asked for its own."""
        if mask.dim() != 1 or options.get("as_tuple"):
            return found(mask, **options)
        experts[0] = mask.shape[0] - unused
        return [_Place(place) for place in range(experts[0])]

    def places(*given: Any, **options: Any) -> Any:
        """So many places of a mask as its share, and ``where`` as it is otherwise."""
        if len(given) != 1 or options:
            return where(*given, **options)
        count = -(-given[0].numel() // experts[0])
        return tuple(torch.zeros(count, dtype=torch.int64) for _ in given[0].shape)

    with replaced(torch.Tensor, "nonzero", nonzero), replaced(torch, "where", places):
        yield
