"""The check-only backend for the Hugging Face Trainer, and the adapter for fms-acceleration's published runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.memory.adapters import fms_acceleration
from benchmarks.memory.frameworks.hf_trainer import HfTrainer, causal_loss
from benchmarks.memory.row import Row
from benchmarks.memory.scoring import scores
from tests.support.measured_lines import FMS_ACCELERATION
from tests.support.published_rows import at, rank, the_row

LORA = {"lora_rank": "16", "notes": "framework_config=none; LoRA alpha=16.0 targets=q_proj k_proj v_proj o_proj"}
FUSED = "framework_config=accelerated-peft-bnb-foak; LoRA alpha=16.0 targets=q_proj k_proj v_proj o_proj"
AMP = {"precision": "bfloat16 weights, bf16 autocast (AMP)", "framework_version": "transformers4.45.2"}
FSDP = {"framework": "HF Trainer / TRL SFTTrainer + FSDP1 FULL_SHARD (accelerate)", "n_gpus": "2", "global_batch": "8"}
TOKENS = 4 * 4096


def row(folder: Path, **changes: str) -> Row:
    return the_row(fms_acceleration.rows, folder / "fms_acceleration.csv", FMS_ACCELERATION | changes)


def test_a_whole_model_in_bf16_takes_ten_bytes_a_parameter_in_the_step(tmp_path: Path) -> None:
    found = rank(row(tmp_path))
    states = at(found, "step", "parameters", "gradients", "optimizer_states", "temporary")
    assert states == 10 * found.model.elements.whole
    assert found.peak[1] == "step"


def test_fsdp_with_mixed_precision_takes_twenty_bytes_of_a_shard_in_the_step(tmp_path: Path) -> None:
    found = rank(row(tmp_path, **FSDP, **AMP))
    states = at(found, "step", "parameters", "gradients", "optimizer_states", "temporary")
    assert states == 20 * found.model.elements.optimizer


@pytest.mark.parametrize(
    ("version", "fast", "loss"), [((4, 45), False, 12), ((4, 45), True, 8), ((4, 48), False, 14), ((4, 52), False, 10)]
)
def test_the_loss_keeps_what_its_version_of_transformers_copies(
    version: tuple[int, int], fast: bool, loss: int
) -> None:
    assert causal_loss(version, fast=fast).loss == loss


def test_the_slope_of_a_recomputed_nf4_run_is_what_was_published_for_it(tmp_path: Path) -> None:
    settings = AMP | LORA | {"notes": FUSED, "quant": "nf4"}
    sizes = []
    for batch in ("4", "8"):
        found = rank(row(tmp_path, **settings, micro_batch=batch, global_batch=batch))
        sizes.append(found.allocated("block_backward"))
    # 32 checkpoints, six tensors of the MLP's width and twelve of the hidden size, statistics and ids.
    assert (sizes[1] - sizes[0]) / TOKENS == pytest.approx(32 * 8192 + 6 * 28672 + 12 * 8192 + 160, rel=1e-4)


def test_nf4_takes_four_bits_and_an_eighth_of_a_weight_and_gptq_a_little_more(tmp_path: Path) -> None:
    sizes = {}
    for quant in ("nf4", "gptq-int4"):
        found = rank(row(tmp_path, **AMP, **LORA, quant=quant))
        rest = 2 * found.model.root.whole + 4 * found.model.elements.optimizer
        sizes[quant] = 8 * (at(found, "load", "parameters") - rest) / found.model.elements.quantised
    assert sizes["nf4"] == pytest.approx(4.127, abs=0.001)
    assert sizes["gptq-int4"] == pytest.approx(4 + 16 / 128 + 4 / 128, abs=0.001)


def test_frozen_units_of_fsdp1_keep_every_checkpoint_and_its_gradient(tmp_path: Path) -> None:
    found = rank(row(tmp_path, **FSDP, **AMP, **LORA))
    kept = [term.bytes for term in found.at("second_layer_backward") if "inputs of all blocks" in term.formula]
    assert kept == [2 * 30 * 8192 * TOKENS]
    assert not [term for term in rank(row(tmp_path, **FSDP, **AMP)).terms if "inputs of all" in term.formula]


def test_old_mistral_copies_keys_and_values_to_every_head_and_llama_does_not(tmp_path: Path) -> None:
    names = {"mistralai/Mistral-7B-v0.1": True, "meta-llama/Meta-Llama-3-8B": False}
    for name, repeats in names.items():
        backend = row(tmp_path, **AMP, model_name=name).backend
        assert isinstance(backend, HfTrainer)
        assert backend.repeats_keys == repeats


def test_ligers_loss_holds_a_chunk_of_logits_at_a_time(tmp_path: Path) -> None:
    found = row(tmp_path, **AMP, notes="framework_config=foak-fast-kernels-liger").spec
    assert found is not None
    assert (found.train.loss, found.train.loss_chunk) == ("chunked", 2048)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seq_len": ""}, "the sequence length is not stated"),
        ({"hidden": ""}, "the shape of the model is not stated"),
        ({"ep": "2"}, "experts on different ranks, which the Trainer does not have"),
        ({"notes": "framework_config=moe-scattermoe"}, "ScatterMoE's kernels"),
        ({"activation_fn": "gelu"}, "a GPT whose dropout is not stated"),
        ({"layers": "none"}, "does not parse: model.num_hidden_layers"),
    ],
)
def test_a_run_that_cannot_be_expressed_is_left_out_with_its_reason(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    found = row(tmp_path, **changes)
    assert (found.left_out, found.spec) == (reason, None)


def test_experts_in_a_loop_are_unpacked_one_by_one(tmp_path: Path) -> None:
    experts = {"moe_num_experts": "8.0", "moe_topk": "2.0", "moe_ffn": "14336.0", "ffn": "14336"}
    found = rank(row(tmp_path, **AMP, **LORA, **experts, quant="nf4"))
    unpacked = next(term for term in found.at("forward") if "dequantised" in term.what)
    # Gate and up count as one matrix, as later versions join them.
    assert unpacked.bytes == 2 * (2 * 14336) * 4096


def test_every_rank_of_fsdp1_has_the_constants_of_all_4_bit_weights(tmp_path: Path) -> None:
    found = rank(row(tmp_path, **FSDP, **AMP, **LORA, quant="nf4"))
    (others,) = [term for term in found.at("idle") if term.what.startswith("quantisation constants of other ranks")]
    shared = found.model.elements.quantised - found.model.elements.quantised_parameters
    assert 8 * others.bytes / shared == pytest.approx(0.127, abs=0.001)


def test_experts_are_read_from_their_own_columns(tmp_path: Path) -> None:
    experts = {"moe_num_experts": "8.0", "moe_topk": "2.0", "moe_ffn": "14336.0"}
    found = row(tmp_path, **experts).spec
    assert found is not None
    assert (found.model.family, found.model.num_experts, found.model.num_experts_per_tok) == ("moe", 8, 2)
    assert found.model.moe_intermediate_size == 14336


def test_a_run_that_failed_counts_as_likely_out_of_memory(tmp_path: Path) -> None:
    found = row(tmp_path, oom="likely", counter="", peak_mem_gib="", soft="True")
    assert (found.oom, dict(found.measured), found.soft) == ("likely", {}, True)


def test_probable_ooms_are_a_line_of_their_own(tmp_path: Path) -> None:
    failed = row(tmp_path, oom="likely", counter="", peak_mem_gib="", soft="True", micro_batch="64", global_batch="64")
    lines = list(scores("file.csv", [row(tmp_path), failed]))
    assert [(line.counter, line.rows, line.median is None) for line in lines] == [
        ("allocated", 1, False),
        ("device (oom=likely)", 1, True),
    ]
    assert lines[1].oom_called_fitting == 0
