"""From tokens to the mean loss, in one module: so that FSDP's root also gathers the output head for the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from launcher.spec import TrainSpec

type Share = Callable[..., Sequence[torch.Tensor]]
"""This rank's tokens of each of its arguments, which are of shape (batch, sequence)."""


class LanguageModel(nn.Module):
    """A causal language model with its loss.

    Attributes:
        network: The ``transformers`` network.
    """

    def __init__(self, network: Any, train: TrainSpec, share: Share | None = None) -> None:
        super().__init__()
        self.network = network
        self._share = share
        self._chunk = train.loss_chunk if train.loss == "chunked" else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy of each next token; of this rank's tokens where ranks share a sequence.

        Args:
            tokens: Ids of shape (batch, sequence + 1).
        """
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        positions = torch.arange(inputs.shape[1], device=inputs.device).unsqueeze(0)
        if self._share is not None:
            inputs, labels, positions = self._share(inputs, labels, positions)
        hidden = self.network.base_model(input_ids=inputs, position_ids=positions, use_cache=False).last_hidden_state
        if self._chunk is None:
            return self._loss(hidden, labels) / labels.numel()
        total = hidden.new_zeros((), dtype=torch.float32)
        states, targets = (torch.split(rows, self._chunk) for rows in (hidden.flatten(0, 1), labels.flatten()))
        for some, theirs in zip(states, targets, strict=True):
            total = total + checkpoint(self._loss, some, theirs, use_reentrant=False, preserve_rng_state=False)
        mean: torch.Tensor = total / labels.numel()
        return mean

    def _loss(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The summed cross entropy; softmax in fp32 whatever the logits' format."""
        logits = self.network.get_output_embeddings()(hidden)
        loss: torch.Tensor = functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), reduction="sum")
        return loss
