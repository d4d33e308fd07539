"""Weights of a mixture of experts without near ties in its router, so that rounding cannot change a token's experts.

An initial router's logits are close together, and about one in ten thousand choices is nearly a tie: two computations
of the same sum then send that token to different experts, and diverge. Here each token of the vocabulary has fixed
experts: its embedding is large in as many dimensions as there are experts, with a sign per expert, and each row of a
router reads one of them.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from launcher.spec import RunSpec
from launcher.worker.model import initial, network

_LARGE = 2.0
"""A hundred times the standard deviation of an embedding's other values, so that for the steps of a test the residual
stream stays near its token's embedding."""

_TABLE, _ROUTER = "model.embed_tokens.weight", "mlp.gate.weight"


def write(folder: Path, spec: RunSpec) -> Path:
    """Write initial weights that fix each token's experts; return the folder, for ``model.weights``."""
    made = network.network(spec.model, torch.float32).to_empty(device="cpu")
    initial.fill(made, spec.train.seed)
    weights = dict(made.state_dict())
    experts, chosen = spec.model.num_experts, spec.model.num_experts_per_tok
    signs = torch.tensor([
        [1.0 if expert in own else -1.0 for expert in range(experts)]
        for own in itertools.combinations(range(experts), chosen)
    ])
    table = weights[_TABLE]
    table[:, :experts] = _LARGE * signs[torch.arange(len(table)) % len(signs)]
    routers = [name for name in weights if name.endswith(_ROUTER)]
    assert len(routers) == spec.model.num_hidden_layers
    for name in routers:
        weights[name][:, :experts] = 2 * torch.eye(experts)
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


def smallest_gap(model: Any, rows: torch.Tensor) -> float:
    """Smallest margin of the logit of a token's last chosen expert over that of the first one not chosen.

    Args:
        model: A ``transformers`` model.
        rows: Token ids, of shape (samples, length).
    """
    found: list[torch.Tensor] = []
    routers = [module for name, module in model.named_modules() if name.endswith(_ROUTER.removesuffix(".weight"))]
    hooks = [
        router.register_forward_hook(lambda _module, _inputs, answer: found.append(answer[0])) for router in routers
    ]
    with torch.no_grad():
        model(input_ids=rows)
    for hook in hooks:
        hook.remove()
    logits = torch.cat(found).sort(dim=-1, descending=True).values
    assert len(logits) == len(routers) * rows.numel()
    chosen = model.config.num_experts_per_tok
    return float((logits[:, chosen - 1] - logits[:, chosen]).min())
