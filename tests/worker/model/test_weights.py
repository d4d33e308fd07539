"""Experts of a Hugging Face folder, which lie there one by one, become the one tensor of their layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")

import torch
from safetensors.torch import load_file, save_file

from launcher.preflight import stored
from launcher.worker import CheckpointError
from launcher.worker.model import initial, network, weights
from tests.support.helpers import make_spec
from tests.support.training import FAMILIES_OF_EXPERTS, MOE

SIZES = ("model=tiny", "model.num_hidden_layers=2", "model.hidden_size=64", "model.num_attention_heads=4")
GLM = (
    *(*MOE, "model.family=glm", "model.num_shared_experts=1", "model.first_dense_layers=1"),
    *("model.n_group=1", "model.topk_group=1", "model.norm_topk_prob=true"),
)
OLMOE = (*MOE, "model.family=transformers", "model.model_type=olmoe")
STORED = {**FAMILIES_OF_EXPERTS, "glm": GLM, "olmoe": OLMOE}


def made(family: str) -> Any:
    network_ = network.network(make_spec(*SIZES, *STORED[family]).model, torch.float32)
    network_.to_empty(device="cpu")
    network.retie(network_)
    return network_


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(each, marks=[pytest.mark.thorough] if each in ("glm", "olmoe", "gpt_oss") else [])
        for each in STORED
    ],
)
def test_a_folder_that_transformers_writes_is_read_whatever_the_names_in_it(family: str, tmp_path: Path) -> None:
    before, after = made(family), made(family)
    initial.fill(before, seed=1)
    buffers = dict(weights.persistent(before))
    for number, buffer in enumerate(buffers.values()):
        buffer.copy_(torch.linspace(0, 1 + number, buffer.numel()).view(buffer.shape))
    before.save_pretrained(tmp_path)
    assert bool(buffers) == (family in ("deepseek", "glm"))
    names = load_file(tmp_path / "model.safetensors")
    assert any(".experts.0." in name for name in names) == (family != "gpt_oss")
    assert not [*stored.weights(make_spec(*SIZES, *STORED[family], f"model.weights={tmp_path}"))]
    weights.load(after, tmp_path, seed=2)
    for (name, was), (_, now) in zip(before.state_dict().items(), after.state_dict().items(), strict=True):
        assert torch.equal(was, now), name


def test_rows_of_added_tokens_are_fresh_and_all_others_are_read(tmp_path: Path) -> None:
    before = made("mixtral")
    initial.fill(before, seed=1)
    before.save_pretrained(tmp_path)
    rows = before.config.vocab_size
    words = (*SIZES, *STORED["mixtral"], f"model.vocab_size={rows + 3}", f"model.weights={tmp_path}")
    added = make_spec(*words, "data=text", "data.special_tokens.additional_special_tokens=[a,b,c]")
    assert [*stored.weights(make_spec(*words))]
    assert not [*stored.weights(added)]
    after = network.network(added.model, torch.float32)
    after.to_empty(device="cpu")
    network.retie(after)
    with pytest.raises(CheckpointError, match="another model"):
        weights.load(after, tmp_path, seed=2)
    weights.load(after, tmp_path, seed=2, grows=True)
    for was, now in zip(_tables(before), _tables(after), strict=True):
        assert torch.equal(was, now[:rows])
        assert 0 < now[rows:].std() < 1


def _tables(network_: Any) -> list[torch.Tensor]:
    return [network_.get_input_embeddings().weight, network_.get_output_embeddings().weight]


def test_a_region_of_experts_is_read_from_their_files_alone(tmp_path: Path) -> None:
    before = made("mixtral")
    initial.fill(before, seed=1)
    before.save_pretrained(tmp_path)
    folder = weights.Folder(tmp_path, before)
    whole = before.get_parameter(name := "model.layers.1.mlp.experts.gate_up_proj")
    rows = whole.shape[1]
    for region in (
        (slice(1, 3), slice(0, rows), slice(0, 64)),
        (slice(0, 1), slice(rows // 2 - 3, rows // 2 + 5), slice(8, 16)),
        (slice(3, 4), slice(rows // 2, rows), slice(0, 64)),
    ):
        assert torch.equal(folder.read(name, tuple(whole.shape), region), whole[region])


def test_weights_in_8_bits_are_refused_and_not_read_without_their_scales(tmp_path: Path) -> None:
    before = made("qwen3_moe")
    initial.fill(before, seed=1)
    before.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.experts.0.up_proj.weight"
    save_file({**tensors, f"{name}_scale_inv": torch.ones(1, 1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="is quantised"):
        weights.load(made("qwen3_moe"), tmp_path, seed=2)
