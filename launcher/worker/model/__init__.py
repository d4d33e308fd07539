"""The model from tokens to the mean loss, as one module so that FSDP's root also gathers the output head."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from launcher.estimate import families
from launcher.spec import RunSpec
from launcher.worker import marks
from launcher.worker.model.network import DTYPES, Absent, base, document_mask, window_masks

type Share = Callable[..., Sequence[torch.Tensor]]
"""Returns this rank's tokens of each argument, which has shape (batch, sequence)."""


class LanguageModel(nn.Module):
    """A causal language model with its loss."""

    def __init__(self, network: Any, spec: RunSpec, share: Share | None = None) -> None:
        super().__init__()
        self.network = network  # A ``transformers`` model.
        self.divisor: torch.Tensor | float = 1.0  # Divides the summed loss if labels are marked; set by an engine.
        self._share = share
        self._marked = spec.data.marked
        self._apart = spec.data.packed == "documents"
        part = spec.parallel.sequence and spec.model.attention == "eager"  # Its own mask is of the tokens that enter.
        self._masked = part or (self._apart and spec.model.attention != "flash")  # Flash finds documents by positions.
        self._compute = DTYPES[spec.precision.compute]
        self._places = "position_ids" in inspect.signature(base(network).forward).parameters
        found = families.of(spec.model).transformers_config(spec.model)
        self._factor, self._cap = (found.logits_factor, found.logits_cap) if found else (1.0, None)
        self._smoothing, self._z_loss = spec.train.label_smoothing, spec.train.z_loss
        if alpha := spec.train.neftune_alpha:
            network.get_input_embeddings().register_forward_hook(functools.partial(_add_noise, alpha))
        self._fused = spec.train.loss == "fused"
        self._chunk = spec.train.loss_chunk if spec.train.loss == "chunked" else None

    def forward(self, tokens: torch.Tensor, entering: torch.Tensor | None = None) -> torch.Tensor:
        """The mean cross entropy of each next token, or, without an output head, the states for the next stage.

        If ranks share a sequence, the mean is over this rank's tokens; if labels are marked, it is the sum over trained
        ones divided by ``divisor``. A later stage gets its input states in ``entering``.
        """
        states = self.states(tokens, entering)
        return states if isinstance(self.network.get_output_embeddings(), Absent) else self.loss(states, tokens)

    def _own(self, *rows: torch.Tensor) -> Sequence[torch.Tensor]:
        return rows if self._share is None else self._share(*rows)

    def states(self, tokens: torch.Tensor, entering: torch.Tensor | None = None) -> torch.Tensor:
        """Hidden states after this rank's blocks."""
        rows = inputs = tokens[:, :-1]
        if self._marked and entering is None:
            inputs = marks.ids(rows)
        places = torch.arange(inputs.shape[1], device=inputs.device).unsqueeze(0)
        inputs, positions = self._own(inputs, marks.positions(rows) if self._apart else places)
        first = {"input_ids": inputs} if entering is None else {"inputs_embeds": entering}
        like = torch.empty((), dtype=self._compute, device=inputs.device)
        more = (
            {"attention_mask": document_mask(positions, like)}
            if self._masked
            else window_masks(self.network, inputs.shape[1], like)
        )
        if self._places:
            more["position_ids"] = positions
        made: torch.Tensor = base(self.network)(**first, **more, use_cache=False).last_hidden_state
        return made

    def loss(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy, given the states after the last norm."""
        (labels,) = self._own(marks.labels(tokens) if self._marked else tokens[:, 1:])
        divisor = self.divisor if self._marked else labels.numel()
        if self._fused:
            return self._fused_loss(hidden, labels) / divisor
        if self._chunk is None:
            return self._loss(hidden, labels) / divisor
        total = hidden.new_zeros((), dtype=torch.float32)
        states, targets = (torch.split(rows, self._chunk) for rows in (hidden.flatten(0, 1), labels.flatten()))
        for some, theirs in zip(states, targets, strict=True):
            total = total + checkpoint(self._loss, some, theirs, use_reentrant=False, preserve_rng_state=False)
        mean: torch.Tensor = total / divisor
        return mean

    def _fused_loss(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy  # Optional package.

        head = self.network.get_output_embeddings()
        states = hidden.flatten(0, 1) if self._factor == 1.0 else hidden.flatten(0, 1) * self._factor
        loss: torch.Tensor = liger_fused_linear_cross_entropy(
            states,
            head.weight,
            labels.flatten(),
            bias=head.bias,
            reduction="sum",
            softcap=self._cap,
            label_smoothing=self._smoothing if self.training else 0.0,
            lse_square_scale=self._z_loss if self.training else 0.0,
        )
        return loss

    def _loss(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The summed cross entropy; softmax in fp32 whatever the logits' dtype; ignored labels add zero."""
        logits = self.network.get_output_embeddings()(hidden)
        if self._factor != 1.0:
            logits = logits * self._factor
        if self._cap:
            logits = torch.tanh(logits / self._cap) * self._cap
        rows, smoothing = logits.float().flatten(0, -2), self._smoothing if self.training else 0.0
        if self._z_loss and self.training:
            return _WithSquaredDenominator.apply(rows, labels.flatten(), smoothing, self._z_loss)  # type: ignore[no-any-return]
        return functional.cross_entropy(rows, labels.flatten(), reduction="sum", label_smoothing=smoothing)


def _add_noise(alpha: float, table: nn.Module, _: object, made: torch.Tensor) -> torch.Tensor:
    """Add NEFTune noise (Jain et al., 2023), as ``neftune_post_forward_hook`` of ``transformers`` (``neftune.py``)."""
    if not table.training:
        return made
    most = alpha / (made.shape[-2] * made.shape[-1]) ** 0.5
    return made + torch.empty_like(made).uniform_(-most, most)


class _WithSquaredDenominator(torch.autograd.Function):
    """The summed cross entropy of fp32 logits, plus ``weight`` times the squared log-denominator of softmax (PaLM).

    The backward pass keeps only the log-softmax, which becomes the gradient.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, labels: torch.Tensor, smoothing: float, weight: float) -> torch.Tensor:
        found = functional.log_softmax(rows, -1)
        known = labels != marks.IGNORED
        places, denominator = labels.clamp(min=0)[:, None], rows[:, 0] - found[:, 0]
        loss = -(1 - smoothing) * found.gather(1, places)[:, 0] + weight * denominator**2
        if smoothing:
            loss -= smoothing * found.mean(-1)
        ctx.save_for_backward(found, places, denominator, known)
        ctx.smoothing, ctx.weight = smoothing, weight
        return loss.masked_fill(~known, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        found, places, denominator, known = ctx.saved_tensors
        rows = found.exp().mul_((1 + 2 * ctx.weight * denominator)[:, None])
        rows.scatter_add_(1, places, rows.new_full((), ctx.smoothing - 1).expand_as(places))
        if ctx.smoothing:
            rows -= ctx.smoothing / rows.shape[1]
        return rows.mul_(known[:, None] * gradients[0]), None, None, None
