"""The adapter for published runs of many frameworks, and the backends that stand in for those."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.memory.adapters import published
from benchmarks.memory.row import Row
from tests.support.published_rows import at, rank, the_row

RUN = {
    "id": "one",
    "framework": "torchtitan",
    "framework_version": "torchtitan 9dec370 (2024-12)",
    "gpu": "H100-80GB",
    "model_name": "Llama-3.1-8B",
    "n_gpus": "8",
    "hidden": "4096",
    "layers": "32",
    "heads": "32",
    "kv_heads": "8",
    "ffn": "14336",
    "vocab": "128256",
    "tied_embeddings": "false",
    "activation_fn": "swiglu",
    "seq_len": "8192",
    "micro_batch": "1",
    "grad_accum": "1",
    "global_batch": "8",
    "dp": "8",
    "tp": "1",
    "sp": "false",
    "pp": "1",
    "cp": "1",
    "zero_stage": "fsdp2",
    "offload": "none",
    "act_ckpt": "op",
    "compile": "false",
    "lora_rank": "",
    "quant": "",
    "params_b": "1.1",
    "peak_mem_gib": "49.58",
    "oom": "false",
    "counter": "reserved",
    "soft": "False",
    "notes": "",
}
LITGPT = {
    "framework": "LitGPT",
    "framework_version": "2024 (config_hub)",
    "gpu": "A10G-24GB",
    "counter": "allocated",
    "act_ckpt": "none",
    "seq_len": "512",
    "global_batch": "32",
    "n_gpus": "4",
    "notes": "full; yaml devices=1 (README); lora q/k/v/proj/mlp/head=/////; end",
}
QWEN = "HF Trainer (+PEFT/DeepSpeed), Qwen finetune.py"
ADAPTED = LITGPT | {
    "lora_rank": "32",
    "notes": "lora; yaml devices=1 (README); lora q/k/v/proj/mlp/head=true/false/true/false/false/false; end",
}


def row(folder: Path, **changes: str) -> Row:
    return the_row(published.rows, folder / "published.csv", RUN | changes)


def test_torchtitan_holds_a_shard_of_fp32_weights_and_moments_and_copies_keys_to_every_head(tmp_path: Path) -> None:
    found = rank(row(tmp_path))
    assert at(found, "idle", "parameters", "optimizer_states") == 12 * found.model.elements.parameters
    keys = next(item for item in found.model.blocks[0].saved_if_trained if item.name == "keys")
    assert keys.bytes == 2 * 4096


@pytest.mark.parametrize(
    ("changes", "per_entry"),
    [
        ({}, 12),
        ({"compile": "true"}, 12),
        ({"compile": "true", "framework_version": "torchtitan e7c0cae (2025-06-13)"}, 6),
        ({"notes": "with compiled/chunked cross-entropy loss"}, 6),
    ],
)
def test_torchtitan_compiles_its_loss_with_the_model_since_march_2025(
    tmp_path: Path, changes: dict[str, str], per_entry: int
) -> None:
    found = rank(row(tmp_path, **changes))
    assert at(found, "loss_backward", "logits") == per_entry * 128256 * 8192


@pytest.mark.parametrize(
    ("changes", "gib"),
    [
        ({}, 49.58),
        ({"notes": "reshard policy: never reshard (ZeRO-2-like)"}, 62.18),
        ({"framework_version": "torchtitan d4844586 (2025-08)"}, 47.38),
        ({"framework_version": "torchtitan 40f8fd00 (2024-06)"}, 59.48),
    ],
)
def test_torchtitan_reserves_what_the_streams_beside_the_computing_one_held(
    tmp_path: Path, changes: dict[str, str], gib: float
) -> None:
    found = row(tmp_path, **changes)
    assert found.reserved is not None
    assert found.reserved() / 2**30 == pytest.approx(gib, rel=0.05)


def test_fsdp1_under_torchtitan_gathers_in_the_stream_of_its_own_alone(tmp_path: Path) -> None:
    reserved = []
    for stage in ("fsdp2", "fsdp"):
        found = row(tmp_path, framework_version="torchtitan 40f8fd00 (2024-04)", zero_stage=stage)
        assert found.reserved is not None
        reserved.append(found.reserved())
    root = 2 * (2 * 128256 * 4096 + 4096)
    assert reserved[0] - reserved[1] == root


def test_never_resharding_keeps_every_gathered_block(tmp_path: Path) -> None:
    sizes = [at(rank(row(tmp_path, notes=notes)), "loss", "gather_buffers") for notes in ("", "never reshard (ZeRO-2)")]
    assert sizes[1] > sizes[0] + 2 * 6 * 2**30


def test_a_public_config_completes_the_columns(tmp_path: Path) -> None:
    shape = {"model_name": "Qwen3-32B", "hidden": "5120", "layers": "64", "heads": "64", "ffn": "25600"}
    found = row(tmp_path, **shape, vocab="151936").spec
    assert found is not None
    assert (found.model.head_size, found.model.qk_norm) == (128, True)


def test_litgpt_keeps_gradients_of_all_weights_between_micro_batches_and_bf16_states(tmp_path: Path) -> None:
    found = rank(row(tmp_path, **LITGPT))
    assert found.model.spec.gpus == 1
    states = ("parameters", "gradients", "optimizer_states")
    assert at(found, "forward", *states) == 8 * found.model.elements.whole
    assert at(found, "step", *states, "temporary") == 10 * found.model.elements.whole


def test_litgpt_on_several_gpus_shards_and_reduces_only_at_the_last_micro_batch(tmp_path: Path) -> None:
    notes = LITGPT["notes"].replace("devices=1", "devices=4")
    found = rank(row(tmp_path, **LITGPT | {"notes": notes}))
    counts = found.model.elements
    assert at(found, "loss", "gradients") == 2 * counts.whole
    assert at(found, "step", "gradients") == 2 * counts.gradients
    assert found.model.spec.checkpointing.mode == "full"


def test_litgpt_adapts_queries_keys_and_values_at_once(tmp_path: Path) -> None:
    found = row(tmp_path, **ADAPTED)
    assert found.spec is not None
    assert found.spec.adapter.targets == ("q_proj",)
    every = ADAPTED["notes"].replace("true/false/true/false/false/false", "true/true/true/true/true/true")
    everything = rank(row(tmp_path, **ADAPTED | {"notes": every}))
    targets = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert everything.model.spec.adapter.targets == targets
    assert [term for term in everything.terms if "the head's dropout" in term.formula]


def test_litgpt_makes_the_logits_of_an_adapted_model_in_chunks_of_128_tokens(tmp_path: Path) -> None:
    sizes = [at(rank(row(tmp_path, **ADAPTED | {"quant": quant})), "loss_backward", "logits") for quant in ("", "nf4")]
    assert sizes == [10 * 128256 * 512, 6 * 128256 * 512]


def test_litgpt_pretrains_on_labels_that_come_shifted_and_accumulates_as_the_notes_say(tmp_path: Path) -> None:
    noted = "global batch 32 for FSDP runs via CLI, 512 default otherwise"
    settings = LITGPT | {"framework_version": "torch 2.4.0", "notes": noted, "n_gpus": "8", "global_batch": ""}
    copies, shards = (rank(row(tmp_path, **settings | {"zero_stage": stage})) for stage in ("0", "3"))
    assert [found.model.spec.gradient_accumulation for found in (copies, shards)] == [64, 4]
    assert at(copies, "loss_backward", "logits") == 12 * 128256 * 512
    assert (shards.model.spec.checkpointing.mode, shards.model.spec.parallel.shard) == ("none", True)


@pytest.mark.parametrize(
    ("changes", "bytes_of_a_token"),
    [
        ({}, 2 * (4096 + 1024)),
        ({"kv_heads": "32"}, 4 * (4096 + 4096)),
        ({"quant": "nf4"}, 2 * (4096 + 1024) + 2 * (3 * 4096 + 14336)),
        ({"kv_heads": "32", "activation_fn": "gelu", "model_name": "phi-2"}, 4 * (4096 + 4096) - 2 * 4096),
    ],
)
def test_litgpts_blocks_save_joined_projections_padded_adapters_and_inputs_of_4_bit_products(
    tmp_path: Path, changes: dict[str, str], bytes_of_a_token: int
) -> None:
    found = rank(row(tmp_path, **ADAPTED | changes))
    more = [term for term in found.at("loss") if term.what.startswith("joined projections")]
    assert [term.bytes for term in more] == [32 * bytes_of_a_token * 512]


def test_litgpts_4_bit_products_hold_the_inputs_of_the_micro_batch_before(tmp_path: Path) -> None:
    found = rank(row(tmp_path, **ADAPTED | {"quant": "nf4"}))
    last = next(term for term in found.at("forward") if term.what == "inputs of products on the last graph")
    assert last.bytes == 32 * 2 * (3 * 4096 + 14336) * 512


def test_litgpt_without_a_gate_is_a_gpt_with_untied_weights(tmp_path: Path) -> None:
    found = row(tmp_path, **LITGPT | {"activation_fn": "gelu", "model_name": "phi-2", "tied_embeddings": "true"}).spec
    assert found is not None
    assert (found.model.family, found.model.gated, found.model.tie_word_embeddings) == ("gpt", False, False)


def test_litgpt_under_ddp_has_buckets(tmp_path: Path) -> None:
    settings = LITGPT | {"framework_version": "torch 2.4.0", "notes": "", "n_gpus": "8", "zero_stage": "0"}
    found = rank(row(tmp_path, **settings))
    assert at(found, "idle", "reduce_buffers") == 2 * found.model.elements.whole


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"counter": "unknown"}, "no memory, or it is not said which counter"),
        ({"ffn": ""}, "the shape of the model is not stated"),
        ({"micro_batch": ""}, "the sequence length or the micro-batch is not stated"),
        ({"n_gpus": ""}, "the number of GPUs is not stated"),
        ({"gpu": "A6000"}, "no such GPU in conf/hardware"),
        ({"framework": "XTuner V1 FSDP"}, "a framework that is not modelled"),
        (
            {"framework": "ms-swift (HF Trainer)"},
            "samples of varying length, whose order the allocator's cache depends on",
        ),
        ({"compile": "thunder"}, "a compiler that chooses what is saved"),
        ({"notes": "MLA; MoE 64 routed experts"}, "torchtitan's kernels for experts"),
        ({"pp": "8"}, "torchtitan's pipelines"),
        ({"act_ckpt": ""}, "it is not stated what is recomputed"),
        ({"compile": "true", "framework_version": "see file"}, "torchtitan's version, on which its loss depends"),
        ({"notes": "SAC additionally saves abs/amax"}, "settings that differ from the defaults and are not stated"),
        (LITGPT | {"compile": "thunder"}, "a compiler that chooses what is saved"),
        (LITGPT | {"notes": "full; yaml devices=n/a"}, "no recipe states the run's settings"),
        (LITGPT | {"quant": "nf4"}, "no recipe states the run's settings"),
        (LITGPT | {"params_b": "3.821"}, "weights, gradients and moments as stated exceed the card"),
        ({"framework": "fsdp_qlora (FSDP1)", "offload": "params cpu"}, "parameters that FSDP1 offloads"),
        ({"framework": QWEN}, "the Trainer under DeepSpeed"),
        (
            {"framework": QWEN, "n_gpus": "1", "lora_rank": "64", "notes": "LoRA(emb); printed 13.7G"},
            "an embedding that is trained beside an adapter",
        ),
        ({"framework": "Megatron-LM"}, "a Megatron whose switches are not stated"),
        ({"layers": "none"}, "does not parse: model.num_hidden_layers"),
    ],
)
def test_a_run_that_cannot_be_expressed_is_left_out_with_its_reason(
    tmp_path: Path, changes: dict[str, str], reason: str
) -> None:
    found = row(tmp_path, **changes)
    assert (found.left_out, found.spec) == (reason, None)


def test_answer_ais_qlora_keeps_its_adapters_in_bf16(tmp_path: Path) -> None:
    settings = {"framework": "fsdp_qlora (FSDP1)", "n_gpus": "2", "dp": "2", "act_ckpt": "full", "lora_rank": "64"}
    found = rank(row(tmp_path, **settings, quant="nf4"))
    counts = found.model.elements
    assert at(found, "idle", "optimizer_states") == 4 * counts.optimizer
    nf4 = 8 * (at(found, "idle", "parameters") - 2 * (counts.parameters - counts.quantised_parameters))
    # 4 bits of the rank's own half, and the constants of both halves.
    assert nf4 / counts.quantised_parameters == pytest.approx(4 + 2 * 0.127, abs=0.001)


def test_the_allocator_reserves_no_more_than_a_card_has(tmp_path: Path) -> None:
    settings = {"framework": "fsdp_qlora (FSDP1)", "n_gpus": "2", "dp": "2", "act_ckpt": "full", "lora_rank": "64"}
    for batch in ("1", "3"):
        found = row(tmp_path, **settings, quant="nf4", gpu="RTX3090-24GB", micro_batch=batch, seq_len="2048")
        assert found.reserved is not None
        assert found.spec is not None
        assert found.spec.rank_memory_bytes is not None
        assert found.reserved() < found.spec.rank_memory_bytes


def test_qwens_script_adapts_every_linear_layer_of_a_block(tmp_path: Path) -> None:
    found = rank(row(tmp_path, framework=QWEN, n_gpus="1", dp="1", act_ckpt="full", lora_rank="64"))
    assert len(found.model.spec.adapter.targets) == 5
    assert at(found, "loss", "logits") == 12 * 128256 * 8192


def test_a_log_of_megatron_names_the_stage_that_it_measured(tmp_path: Path) -> None:
    settings = {
        "framework": "Megatron-LM",
        "framework_version": "2021-05/06 (Jean Zay logs)",
        "gpu": "V100-SXM2-32GB",
        "activation_fn": "gelu",
        "kv_heads": "32",
        "n_gpus": "64",
        "dp": "1",
        "tp": "4",
        "pp": "16",
        "act_ckpt": "full",
        "notes": "peak on pp stage 0; max_reserved 22.7 GiB",
    }
    found = row(tmp_path, **settings)
    assert found.spec is not None, found.left_out
    assert (found.stage, found.spec.gpus, found.spec.parallel.pipeline) == (0, 64, 16)


def test_an_out_of_memory_run_is_judged_and_not_measured(tmp_path: Path) -> None:
    found = row(tmp_path, oom="true", peak_mem_gib="79.0", counter="")
    assert (found.oom, dict(found.measured)) == ("true", {})
