"""Bytes that a small Megatron-core model saves for its backward pass, with each of its switches."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

TOKENS = 2 * 32


def write(path: str) -> None:
    """Write the bytes without switches (key ""), and with each switch of the model, by argument name.

    Args:
        path: The JSON file.
    """
    from megatron.core import parallel_state  # Imported here, as in launcher.worker: only ranks need it.
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer import TransformerConfig
    from megatron.training import arguments

    from launcher.worker.megatron import cpu

    if os.environ.get("RANK", "0") != "0":
        return
    cpu.install()
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}.store", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    parser = argparse.ArgumentParser(add_help=False)
    arguments.add_megatron_arguments(parser)
    fields = {field.name: field for field in dataclasses.fields(TransformerConfig)}
    found = {"": _saved({})}
    for action in parser._actions:
        if action.dest not in fields or action.nargs != 0:
            continue
        names = {flag.removeprefix("--").replace("_", "-") for flag in action.option_strings if flag.startswith("--")}
        try:
            size = _saved({action.dest: not fields[action.dest].default})
        except (ValueError, AssertionError, RuntimeError, TypeError, AttributeError, ImportError):
            continue  # The switch needs another library or argument.
        found |= dict.fromkeys(names, size)
    Path(path).write_text(json.dumps(found))


def _saved(switch: dict[str, Any]) -> int:
    """Saved bytes of a model with one dense layer and one with experts and shared experts, in fp32."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer import TransformerConfig

    torch.manual_seed(0)
    values: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "ffn_hidden_size": 96,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "normalization": "RMSNorm",
        "num_moe_experts": 4,
        "moe_layer_freq": [0, 1],
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 48,
        "moe_shared_expert_intermediate_size": 32,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.01,
        "use_cpu_initialization": True,
        **dict.fromkeys(("add_bias_linear", "bias_activation_fusion", "masked_softmax_fusion"), False),
        **dict.fromkeys(("persist_layer_norm", "bias_dropout_fusion", "apply_rope_fusion"), False),
        **dict.fromkeys(("gradient_accumulation_fusion", "attention_dropout", "hidden_dropout"), 0),
    }
    config = TransformerConfig(**(values | switch))
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    model = GPTModel(config, spec, 128, 32, position_embedding_type="rope", share_embeddings_and_output_weights=False)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept = dict[int, torch.UntypedStorage]()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(0, 128, (2, 32))
    mask = torch.ones(32, 32).triu(1).bool()[None, None]
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        model(ids, torch.arange(32).expand(2, 32), mask, labels=ids)
    return sum(storage.nbytes() for storage in kept.values())
