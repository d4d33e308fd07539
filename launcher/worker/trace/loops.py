"""Run loops over the experts that got tokens on tensors without values: as if all experts got equally many."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from launcher.worker import replaced


class _Place(int):
    """A number with the methods of a one-element tensor."""

    def __getitem__(self, _: object) -> "_Place":
        return self

    def item(self) -> int:
        """The number."""
        return int(self)


class _Even(list[int]):
    """Sizes of equal parts; only the number of parts matters."""


@contextlib.contextmanager
def evenly(*, most: int, unused: int = 0, experts: int = 0) -> Iterator[None]:
    """Make ``nonzero`` find ``most`` experts, out of ``experts`` or all but the last ``unused``, and split equally."""
    found, where = torch.Tensor.nonzero, torch.where
    listed: Any = FakeTensor.tolist
    split: Any = torch.Tensor.split
    run = [1]

    def nonzero(mask: torch.Tensor, **options: Any) -> Any:
        """The chosen indices of a one-dimensional mask, as numbers, since a tensor without values has none."""
        if mask.dim() != 1 or options.get("as_tuple") or not isinstance(mask, FakeTensor):
            return found(mask, **options)
        there = experts or mask.shape[0] - unused
        chosen = range(0, there, -(-there // most))
        run[0] = len(chosen)
        return [_Place(place) for place in chosen]

    def places(*given: Any, **options: Any) -> Any:
        """As many indices of a mask as an equal share has; other calls of ``where`` are unchanged."""
        if len(given) != 1 or options or not isinstance(given[0], FakeTensor):
            return where(*given, **options)
        count = -(-given[0].numel() // run[0])
        return tuple(torch.zeros(count, dtype=torch.int64) for _ in given[0].shape)

    def sizes(tensor: Any) -> Any:
        return _Even([0] * tensor.shape[0]) if tensor.dim() == 1 else listed(tensor)

    def parts(tensor: Any, asked: Any, dim: int = 0) -> Any:
        if isinstance(asked, _Even):
            each, more = divmod(tensor.shape[dim], len(asked))
            asked = [each + (part < more) for part in range(len(asked))]
        return split(tensor, asked, dim)

    with (
        replaced(torch.Tensor, "nonzero", nonzero),
        replaced(torch, "where", places),
        replaced(FakeTensor, "tolist", sizes),
        replaced(torch.Tensor, "split", parts),
    ):
        yield
