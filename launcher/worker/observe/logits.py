"""What a class of ``transformers`` does to the logits behind its output projection: a factor, a cap, or neither."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import MoeModelOutputWithPast

_VALUES = (1e-6, 0.5, 3.0, 40.0, 1e9)


class _Output(MoeModelOutputWithPast):  # type: ignore[misc]  # transformers has no types.
    """Hidden states, and nothing of all else that some class asks for."""

    def __getattr__(self, name: str) -> None:
        return None


class _Given(nn.Module):
    """In the place of the network: it hands on hidden states, and has the network's own numbers."""

    def __init__(self, hidden: torch.Tensor, network: nn.Module) -> None:
        super().__init__()
        self.hidden, self._network = hidden, [network]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._network[0], name)

    def forward(self, *_: object, **__: object) -> _Output:
        """Return them as the last ones."""
        return _Output(last_hidden_state=self.hidden)


class _Unchanged(nn.Module):
    """In the place of the output projection, whose weight's format a class may ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((1, 1), dtype=torch.float64))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states."""
        return hidden


def logits(made: Any, name: str) -> tuple[float, float | None] | None:
    """The factor and the cap of the logits; None where they are made in another way.

    ``name`` is the attribute of ``made``, which is used up, that holds the network without its head.
    """
    hidden = torch.tensor(_VALUES, dtype=torch.float64).view(1, -1, 1)
    setattr(made, name, _Given(hidden, getattr(made, name)))
    made.set_output_embeddings(_Unchanged())
    try:
        found = made(input_ids=torch.zeros((1, len(_VALUES)), dtype=torch.int64), use_cache=False).logits.double()
    except Exception:  # Code of any class: it may look at more than hidden states.
        return None
    first, last = (float(found.flatten()[place]) for place in (0, -1))
    factor = first / _VALUES[0]
    cap = None if math.isclose(last, factor * _VALUES[-1], rel_tol=1e-3) else last
    expected = hidden * factor if cap is None else torch.tanh(hidden * factor / cap) * cap
    return (round(factor, 9), cap) if torch.allclose(found, expected, rtol=1e-3) else None
