"""Weights of a mixture of experts whose router is never near a tie, so that rounding cannot change a token's experts.

A new router's logits lie close together, and of some ten thousand choices one is nearly a tie: two computations of the
same sum then send its token to different experts, and differ from there on. Here each token of the vocabulary has its
experts: its embedding is large, with a sign for each expert, in as many dimensions as there are experts, and each row
of a router reads one of them.
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
"""A hundred times the standard deviation of an embedding's other values: for as many steps as a test takes the
residual stream stays near the embedding of its token."""

_TABLE, _ROUTER = "model.embed_tokens.weight", "mlp.gate.weight"


def write(folder: Path, spec: RunSpec) -> Path:
    """Write the first weights of a run with the tokens' experts in them; the folder, for ``model.weights``."""
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
    """How much larger the logit of a token's last chosen expert is than that of the first one that is not, at least.

    Args:
        model: Of ``transformers``.
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
