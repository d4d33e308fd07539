"""Recomputed modules of a block, and the inputs of blocks in host memory."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")

import torch
from torch.autograd.graph import saved_tensors_hooks

from launcher.worker.model import network
from tests.support.helpers import make_spec

FULL = ("checkpointing=full", "checkpointing.offload=true")
MODULES = ("checkpointing=selective", "checkpointing.modules=[experts]")
DEEPSEEK = (
    *("model=deepseek_v3", "model.hidden_size=64", "model.num_hidden_layers=2", "model.num_attention_heads=4"),
    *("model.kv_lora_rank=16", "model.q_lora_rank=0", "model.num_experts=4", "model.moe_intermediate_size=32"),
    *("model.num_experts_per_tok=2", "model.first_dense_layers=1", "model.n_group=1", "model.topk_group=1"),
    *("model.intermediate_size=64", "model.vocab_size=128"),
)


def made(*words: str) -> tuple[Any, dict[int, Any]]:
    spec = make_spec(*words, "hardware=cpu", "parallel=fsdp", "precision=fp32")
    built = network.network(spec.model, torch.float32)
    blocks = network.numbered(built)
    network.recompute(blocks, spec)
    return built, blocks


def test_the_word_experts_reaches_no_dense_mlp() -> None:
    _, blocks = made(*DEEPSEEK, *MODULES)
    wrapped = [name for block in blocks.values() for name, child in block.named_children() if "forward" in vars(child)]
    assert wrapped == ["mlp"]
    assert "forward" in vars(blocks[1].mlp)


def test_of_a_recomputed_block_the_input_alone_goes_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[torch.Size] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor.shape)
        return tensor

    monkeypatch.setattr(network, "save_on_cpu", lambda pin_memory: saved_tensors_hooks(pack, lambda tensor: tensor))
    built, blocks = made("model=tiny", *FULL)
    built.to_empty(device="cpu")
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    tokens = torch.zeros((2, 16), dtype=torch.int64)
    built(tokens).logits.float().sum().backward()
    assert moved == [torch.Size((2, 16, built.config.hidden_size))] * len(blocks)
    assert all(parameter.grad is not None for parameter in built.parameters())
