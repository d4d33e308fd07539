"""Adapters in the memory model: against autograd and peft, against printed numbers, and as laws."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.estimate.memory.estimate import estimate
from launcher.estimate.memory.moments import Moment
from launcher.estimate.memory.result import MemoryEstimate
from launcher.estimate.rank.counts import parameter_counts
from launcher.estimate.rank.model import NF4_BITS, RankModel
from launcher.spec import RunSpec
from tests.support.adapters import LINEARS, first_rank, modules
from tests.support.family_modules import CASES, TOKENS, block_of, saved_by_autograd
from tests.support.helpers import ROOT, make_spec, needs

ONE_GPU = ("hardware=h100_80g", "cluster.gpus_per_node=1")
LORA_7B = ("model=llama2_7b", "parallel=ddp", *ONE_GPU)


def estimated(spec: RunSpec) -> MemoryEstimate:
    return estimate(spec, **modules(spec))


def adapter(*targets: str, name: str = "lora", rank: int = 8) -> tuple[str, ...]:
    return (f"adapter={name}", f"adapter.rank={rank}", f"adapter.targets=[{','.join(targets)}]")


def adapted_module(name: str, targets: tuple[str, ...], dropout: float, dtype: str) -> Any:
    """A module of a family with everything frozen but the adapters that ``peft`` puts in."""
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    torch.manual_seed(0)
    module = CASES[name][0]().to(getattr(torch, dtype))
    transposed = {"fan_in_fan_out": True} if name == "gpt2" else {}
    settings = peft.LoraConfig(r=8, lora_dropout=dropout, target_modules=list(targets), **transposed)
    peft.inject_adapter_in_model(settings, module)
    trained = 0
    for path, parameter in module.named_parameters():
        parameter.requires_grad_(".lora_" in path)
        trained += ".lora_" in path
        assert parameter.dtype == getattr(torch, dtype)
    assert trained
    return module


def held_of(name: str, targets: tuple[str, ...], *more: str) -> RankModel:
    sizes = (f"train.sequence_length={TOKENS}", "train.micro_batch_size=1", "model.max_position_embeddings=96")
    return first_rank(make_spec(*CASES[name][1], *adapter(*targets), *sizes, *more)).model


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("llama", LINEARS),
        ("llama", ("q_proj", "v_proj")),
        ("llama", ("o_proj",)),
        ("llama", ("gate_proj", "up_proj")),
        ("llama", ("down_proj",)),
        ("qwen2, biases of query, key and value", LINEARS),
        ("qwen3, norms of heads", LINEARS),
        ("gpt2", ("c_attn", "c_proj", "c_fc")),
        ("gpt2", ("c_attn",)),
        ("gpt2", ("c_fc",)),
    ],
)
def test_an_adapted_block_saves_the_bytes_that_autograd_keeps_for_it(
    name: str, targets: tuple[str, ...], dropout: float, layer: int
) -> None:
    module = adapted_module(name, targets, dropout, "bfloat16")
    rank = held_of(name, targets, "parallel=fsdp", "precision=bf16", f"adapter.dropout={dropout}")
    assert [kind.count for kind in rank.blocks] == [1, 1]
    predicted = rank.tokens * rank.token_bytes(rank.blocks[layer].saved)
    measured = saved_by_autograd(module, layer=layer)
    if layer == 0 and dropout:
        # Before the first gradient a dropout keeps no mask; the model counts one, of the first linear's input.
        assert predicted - measured in {2 * TOKENS * inputs * count for inputs in (64, 176) for count in (1, 2, 3)}
    else:
        assert measured == predicted


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_an_adapted_block_under_autocast_saves_its_casts_too(name: str) -> None:
    torch = pytest.importorskip("torch")
    targets = LINEARS if name == "llama" else ("c_attn", "c_proj", "c_fc")
    module = adapted_module(name, targets, 0.0, "float32")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        measured = saved_by_autograd(module, layer=1)
    matrices = sum(weight.numel() for weight in block_of(module, 1).parameters() if weight.dim() == 2)
    rank = held_of(name, targets, "parallel=ddp", "precision=bf16")
    assert measured == rank.tokens * rank.token_bytes(rank.blocks[1].saved) + 2 * matrices


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_an_adapter_has_the_parameters_that_peft_adds(name: str) -> None:
    targets = {"gpt2": ("c_attn", "c_proj", "c_fc"), "mixtral": LINEARS[:4]}.get(name, LINEARS)
    module = adapted_module(name, targets, 0.0, "float32")
    rank = held_of(name, targets)
    assert rank.elements.trained == sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
    assert rank.elements.whole >= sum(weight.numel() for weight in module.parameters())


def test_dora_and_saved_modules_have_the_parameters_that_peft_adds() -> None:
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    module = CASES["llama"][0]().to(torch.float32)
    settings = peft.LoraConfig(r=8, target_modules=list(LINEARS), use_dora=True, modules_to_save=["lm_head"])
    peft.inject_adapter_in_model(settings, module)
    more = ("adapter.dora=true", "adapter.modules_to_save=[lm_head]", "model.tie_word_embeddings=false")
    rank = held_of("llama", LINEARS, *more)
    parts = {name: weight.numel() for name, weight in module.named_parameters()}
    added = sum(size for name, size in parts.items() if ".lora_" in name or ".modules_to_save." in name)
    assert rank.elements.trained == added
    assert rank.elements.whole == sum(parts.values())


def test_lora_plus_groups_as_peft_does() -> None:
    torch = pytest.importorskip("torch")
    needs("peft")
    from peft.optimizers import create_loraplus_optimizer

    from launcher.worker.model import optimizers
    from launcher.worker.model.adapters import rated

    module = adapted_module("llama", LINEARS, 0.0, "float32")
    theirs = create_loraplus_optimizer(
        module, torch.optim.AdamW, lr=1.0, loraplus_lr_ratio=8.0, loraplus_weight_decay=0.1
    )
    groups = rated(
        optimizers.parameter_groups(module, make_spec("optimizer.weight_decay=0.1")), module.named_parameters(), 8.0
    )
    ours = {id(each): (group.get("ratio", 1.0), group["weight_decay"]) for group in groups for each in group["params"]}
    assert len(ours) == 2 * 2 * len(LINEARS)
    assert ours == {
        id(each): (group["lr"], group["weight_decay"]) for group in theirs.param_groups for each in group["params"]
    }


def test_peft_prints_4_194_304_trainable_of_6_742_609_920_parameters_for_llama_7b() -> None:
    spec = make_spec(*LORA_7B, *adapter("q_proj", "v_proj"))
    assert first_rank(spec).model.elements.trained == 4_194_304
    assert parameter_counts(spec, modules(spec)["family"])[0] == 6_742_609_920


def test_rank_64_on_all_linears_of_llama_7b_trains_159_907_840_parameters() -> None:
    assert first_rank(make_spec(*LORA_7B, *adapter(*LINEARS, rank=64))).model.elements.trained == 159_907_840


def test_nf4_takes_4_5_bits_and_with_double_quantisation_4_127() -> None:
    assert float(NF4_BITS[False]) == 4.5
    assert f"{float(NF4_BITS[True]):.3f}" == "4.127"


def test_double_quantisation_saves_the_0_30_gb_that_litgpt_measured_on_7_b() -> None:
    plain, double = (
        first_rank(make_spec(*LORA_7B, "adapter=qlora", f"adapter.double_quant={value}")).allocated("idle")
        for value in ("false", "true")
    )
    assert f"{(plain - double) / 1e9:.2f}" == "0.30"


def test_8_bits_take_a_byte_and_four_for_each_row_of_7_b_and_a_gpu_unpacks_them_in_backward_alone() -> None:
    rank = first_rank(make_spec(*LORA_7B, "adapter=qlora", "adapter.quant_type=int8"))
    found = {term.what: term for term in rank.terms}
    assert found["quantised weights"].bytes == 6_476_005_376
    assert found["row scales (largest values) of 8-bit weights"].bytes == 4 * 32 * (5 * 4096 + 2 * 11008)
    assert "forward" not in found["the largest weight, dequantised"].moments
    # 32 bits and 16 of an up-projection's product, beside the codes of its input.
    assert found["a product of 8-bit codes"].bytes == (4096 + 6 * 11008) * rank.model.tokens


@pytest.mark.parametrize(
    ("name", "static", "peak"),
    [
        ("7b alone, qlora", 4_988_324_352, 32_455_675_904),
        ("7b alone, 8-bit base weights", 8_178_845_184, 35_649_018_368),
    ],
)
def test_an_h100_held_what_is_counted_beside_packed_weights(name: str, static: int, peak: int) -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "gpu.json").read_text())["runs"]
    (row,) = (row for row in rows if row["name"] == name)
    assert (row["measured"]["static_bytes"], row["measured"]["peak_allocated_bytes"]) == (static, peak)
    found = estimated(make_spec(*row["overrides"], "hardware=h100_80g"))
    assert found.static_bytes == pytest.approx(static, rel=0.001)  # With the rests of segments that no code splits off.
    assert found.peak.allocated_bytes == pytest.approx(peak, rel=0.001)  # With no copy of attention's outputs.


def test_embedding_head_and_norms_are_not_quantised() -> None:
    elements = first_rank(make_spec(*LORA_7B, *adapter("q_proj", "v_proj", name="qlora"))).model.elements
    norms, tables = (2 * 32 + 1) * 4096, 2 * 32_000 * 4096
    assert elements.whole - elements.quantised == tables + norms + 4_194_304


def test_a_quantised_linear_is_dequantised_for_each_product() -> None:
    rank = first_rank(make_spec(*LORA_7B, "adapter=qlora"))
    terms = [term for term in rank.terms if "dequantised" in term.what]
    assert {term.bytes for term in terms} == {2 * 4096 * 11008}
    assert {"forward", "block_backward"} <= frozenset[str]().union(*(term.moments for term in terms))


@pytest.mark.parametrize("preset", ["ddp", "fsdp", "zero1", "zero2", "zero3"])
def test_a_frozen_base_has_neither_gradients_nor_master_weights_nor_moments(preset: str) -> None:
    world = ("hardware=h100_80g", "cluster.gpus_per_node=8", f"parallel={preset}", "model=llama2_7b")
    rank = first_rank(make_spec(*world, *adapter("q_proj", "v_proj")))
    trained = rank.model.elements.trained
    assert trained == 4_194_304
    for pile in ("gradients", "master_weights", "optimizer_states"):
        assert sum(term.bytes for term in rank.at("step") if term.pile == pile) <= 8 * trained


def test_an_adapter_needs_less_than_training_all_and_4_bits_less_than_that() -> None:
    static = [estimated(make_spec(*LORA_7B, f"adapter={name}")).static_bytes for name in ("none", "lora", "qlora")]
    assert static == sorted(static, reverse=True)
    assert static[0] > 2 * static[1] > 4 * static[2]


def test_a_checkpoint_of_an_adapter_holds_the_adapter_alone() -> None:
    disk = estimated(make_spec(*LORA_7B, *adapter("q_proj", "v_proj"))).disk
    assert disk.checkpoint_bytes == 12 * 4_194_304


def test_adafactor_keeps_the_sums_that_torch_keeps() -> None:
    torch = pytest.importorskip("torch")
    build, overrides = CASES["llama"]
    module = build()
    optimizer = torch.optim.Adafactor(module.parameters())
    module(input_ids=torch.randint(0, 128, (1, 8))).logits.sum().backward()
    optimizer.step()
    kept = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    rank = first_rank(make_spec(*overrides, "parallel=ddp", *ONE_GPU, "precision=fp32", "optimizer=adafactor"))
    predicted = sum(term.bytes for term in rank.at("idle") if term.pile == "optimizer_states")
    assert predicted == sum(value.nbytes for value in kept) > 0


def test_what_the_cache_of_selective_checkpointing_hands_over_is_not_held_twice() -> None:
    def at(mode: str, moment: Moment) -> int:
        rank = first_rank(make_spec(*LORA_7B, *adapter(*LINEARS), f"checkpointing={mode}"))
        return sum(term.bytes for term in rank.at(moment) if term.pile == "activations")

    assert at("full", "loss_backward") < at("selective", "loss_backward") < at("none", "loss_backward")
    assert at("selective", "next_block_backward") < at("none", "next_block_backward")


def test_an_adapter_wraps_the_linear_layers_of_its_model_where_none_are_named() -> None:
    words = ("adapter=lora", "model.weights=weights")
    assert make_spec("model=gpt2", *words).adapter.targets == ("c_attn", "c_proj", "c_fc")
    mamba = make_spec("model=jamba_mini", *words).adapter.targets
    assert {"in_proj", "x_proj", "q_proj", "up_proj"} <= {*mamba}
    assert "mamba" not in mamba
    assert make_spec("model=gpt2").adapter.targets == ("all-linear",)
