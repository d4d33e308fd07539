"""QLoRA in real runs on the CPU: 4-bit and 8-bit bases on two ranks, resumed on one, exported, measured."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from launcher.estimate.memory.moments import MOMENTS
from launcher.spec import RunSpec
from launcher.spec.parse import parse
from launcher.worker import memory
from launcher.worker.engine import Context
from launcher.worker.fsdp import engine
from tests.support import training
from tests.support.adapters import LINEARS, first_rank
from tests.support.checkpoints import held_out_loss
from tests.support.helpers import ROOT, make_spec

SAVED = 4
SHORT = ("train.steps=6", "optimizer.decay_steps=20")
"""The first steps of the others, at their rates: enough to be held against them."""

SIZES = ("model.intermediate_size=128",)
LORA = (*SIZES, "adapter.rank=16", "optimizer.lr=1e-2", "train.eval_every=20", "train.eval_steps=2")
INT8 = "adapter.quant_type=int8"
SAVING = (f"save.every={SAVED}", "save.keep=3", "save.last=true")
FAMILIES = {
    "gpt": (*training.GPT, "model.num_key_value_heads=4", "adapter.targets=[c_attn,c_proj,c_fc]"),
    "moe": (*training.MOE, "model.moe_intermediate_size=64", "checkpointing=full", "adapter.targets=[q_proj,o_proj]"),
}
"""Transposed linears, and experts in one tensor."""
CODES_BYTES = 2 * len(LINEARS) * 4 * (16 + 256 + 1 + 32)
"""Tables of 16 and 256 values and an offset beside the weights of each linear of two layers, and what is rounded up."""


@dataclass(frozen=True)
class Runs:
    folder: Path
    losses: dict[str, list[float]]


def overrides(folder: Path) -> dict[str, tuple[str, ...]]:
    """Runs by name; the first exports the weights that the others start from."""
    base = (*LORA, f"model.weights={folder}/whole/export")
    qlora = ("adapter=qlora", *base)
    short = (*qlora, *SHORT)
    simple = ("precision=bf16", "adapter.double_quant=false")
    return {
        "whole": (*SIZES, "parallel=ddp", "train.steps=8", "save.export=safetensors"),
        "lora": ("parallel=ddp", "adapter=lora", *base),
        "ddp": ("parallel=ddp", *qlora, *SAVING, "save.export=safetensors"),
        "fsdp": ("parallel=fsdp", *short, *SAVING),
        "ddp_bf16": ("parallel=ddp", *short, *simple),
        "fsdp_bf16": ("parallel=fsdp", *short, *simple),
        "int8": ("parallel=ddp", *short, INT8, "save.export=safetensors"),
        "int8_full": ("parallel=fsdp", *short, INT8, "checkpointing=full", *SAVING),
        "fp4": ("parallel=ddp", *short, "adapter.quant_type=fp4"),
        "full": ("parallel=fsdp", *short, "checkpointing=full"),
        "recipe": (*of_the_recipe(), *SIZES, f"model.weights={folder}/whole/export"),
        "selective": ("parallel=ddp", *short, "checkpointing=selective"),
        **{
            f"{name}_{how}": (f"parallel={parallel}", f"adapter={adapter}", *LORA, *more, "train.steps=4")
            for name, more in FAMILIES.items()
            for how, parallel, adapter in (("lora", "ddp", "lora"), ("ddp", "ddp", "qlora"), ("fsdp", "fsdp", "qlora"))
        },
        "moe_int8": ("parallel=fsdp", "adapter=qlora", INT8, *LORA, *FAMILIES["moe"], "train.steps=4"),
    }


def of_the_recipe() -> tuple[str, ...]:
    """What the recipe for 24 GB says of adapter, optimizer and number formats, at a rate that 20 steps learn by."""
    recipe = yaml.safe_load((ROOT / "recipes" / "llama2_7b_qlora_1x24g.yaml").read_text())
    groups = ("parallel", "precision", "checkpointing", "adapter", "optimizer")
    settings = {key: value for key, value in recipe["set"].items() if key.partition(".")[0] in ("adapter", "optimizer")}
    words = [f"{key}={value}" for key, value in (settings | {"optimizer.lr": 1e-2}).items()]
    return (*(f"{group}={recipe['choose'][group]}" for group in groups), *words)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    return Runs(folder, training.train_all(folder, overrides(folder), ranks=2))


def spec_of(runs: Runs, name: str) -> RunSpec:
    return parse(json.loads((runs.folder / name / "spec.json").read_text()))


def test_an_adapter_learns_beside_4_bit_weights_nearly_what_it_learns_beside_whole_ones(runs: Runs) -> None:
    losses = runs.losses["ddp"]
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.5
    assert losses == pytest.approx(runs.losses["lora"], rel=0.01)
    assert losses != pytest.approx(runs.losses["lora"], rel=1e-5), "the weights were not quantised"


def test_8_bits_lose_less_than_4_and_shard_and_recompute_without_another_loss(runs: Runs) -> None:
    whole = runs.losses["lora"][: len(runs.losses["int8"])]
    assert runs.losses["int8"] == pytest.approx(whole, rel=1e-3)
    assert runs.losses["int8"] != pytest.approx(whole, rel=1e-6), "the weights were not quantised"
    assert runs.losses["int8_full"] == pytest.approx(runs.losses["int8"], rel=1e-5)
    assert runs.losses["fp4"] == pytest.approx(whole, rel=0.01)
    assert runs.losses["fp4"] != runs.losses["ddp"][: len(runs.losses["fp4"])]


@pytest.mark.parametrize("family", FAMILIES)
def test_other_weights_are_packed_and_sharded_without_another_loss(runs: Runs, family: str) -> None:
    whole, packed, shards = (runs.losses[f"{family}_{how}"] for how in ("lora", "ddp", "fsdp"))
    assert shards == pytest.approx(packed, rel=1e-5)
    assert packed == pytest.approx(whole, rel=0.01)
    assert packed != pytest.approx(whole, rel=1e-5), "the weights were not quantised"


@pytest.mark.parametrize("name", ["fsdp", "full", "selective"])
def test_sharding_and_recomputation_change_no_loss(runs: Runs, name: str) -> None:
    assert runs.losses[name] == pytest.approx(runs.losses["ddp"][: len(runs.losses[name])], rel=1e-5)


def test_the_recipe_for_24_gb_trains_a_tiny_model_with_8_bit_states(runs: Runs) -> None:
    losses, spec = runs.losses["recipe"], spec_of(runs, "recipe")
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.5
    assert (spec.adapter.name, spec.optimizer.name, spec.adapter.rank) == ("qlora", "paged_adamw_8bit", 64)


def test_products_in_bf16_with_plain_constants_lose_about_the_same(runs: Runs) -> None:
    for name in ("ddp_bf16", "fsdp_bf16"):
        wanted = runs.losses["ddp"][: len(runs.losses[name])]
        assert runs.losses[name] == pytest.approx(wanted, rel=0.01)
        assert runs.losses[name] != wanted


def test_a_run_goes_on_from_its_checkpoint_on_one_rank(runs: Runs, tmp_path: Path) -> None:
    wanted = {}
    for name, before in (("ddp", "fsdp"), ("fsdp", "fsdp"), ("int8", "int8_full")):
        shutil.copytree(runs.folder / before, tmp_path / name)
        for path in (tmp_path / name / "checkpoints").glob("step-*"):
            if path.name != f"step-{SAVED:08d}":
                shutil.rmtree(path)
            else:
                assert sum(file.stat().st_size for file in path.glob("*.distcp")) < 800_000, "the adapter alone"
        parallel = "ddp" if name == "int8" else name
        wanted[name] = (f"parallel={parallel}", *overrides(runs.folder)[before][1:])
    for name, losses in training.train_all(tmp_path, wanted, ranks=1).items():
        assert losses == pytest.approx(runs.losses["int8_full" if name == "int8" else "fsdp"], rel=1e-5)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft 0.21.2 reads it.
def test_the_export_computes_in_transformers_and_peft_what_the_worker_did(runs: Runs) -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    nf4 = transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    base = transformers.AutoModelForCausalLM.from_pretrained(
        runs.folder / "whole" / "export", quantization_config=nf4, dtype=torch.float32, device_map="cpu"
    )
    model = peft.PeftModel.from_pretrained(base, runs.folder / "ddp" / "export")
    model.train()  # There is no dropout; in evaluation bitsandbytes packs weights anew, with constants in bf16.
    evaluation = training.lines(runs.folder / "ddp")[-1]["eval_loss"]
    assert held_out_loss(model, runs.folder / "ddp") == pytest.approx(evaluation, rel=1e-5)


def test_a_step_of_8_bits_takes_what_is_predicted(runs: Runs) -> None:
    assert runs.losses["moe_int8"] == pytest.approx(runs.losses["moe_lora"], rel=1e-3)
    for name in ("int8", "moe_int8"):
        rank, phases = first_rank(spec_of(runs, name)), measured_of(runs, name)["phases"]
        for phase in ("load", "forward", "backward", "optimizer"):
            predicted = max(rank.allocated(moment) for moment, its in MOMENTS.items() if its == phase)
            assert predicted == pytest.approx(phases[phase], rel=0.02 if name == "int8" else 0.04), (name, phase)


@pytest.mark.parametrize("name", ["int8", "int8_full", "moe_int8"])
def test_between_steps_8_bits_are_predicted_to_the_byte_of_buffers(runs: Runs, name: str) -> None:
    predicted = first_rank(spec_of(runs, name)).allocated("idle")
    assert 0 <= measured_of(runs, name)["static_bytes"] - predicted <= 0.01 * predicted


def measured_of(runs: Runs, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((runs.folder / name / "memory.json").read_text())["ranks"][0]
    return found


@pytest.mark.parametrize("name", ["ddp", "fsdp", "ddp_bf16", "fsdp_bf16", "full", "gpt_fsdp", "moe_fsdp", "recipe"])
def test_between_steps_ranks_hold_what_is_predicted_and_tables_of_codes(runs: Runs, name: str) -> None:
    predicted = first_rank(spec_of(runs, name)).allocated("idle")
    measured = measured_of(runs, name)["static_bytes"]
    assert 0 <= measured - predicted <= CODES_BYTES + 0.01 * predicted


@pytest.mark.parametrize("double", ["true", "false"])
def test_the_base_is_packed_and_frozen_and_the_adapter_is_not(tmp_path: Path, double: str) -> None:
    from bitsandbytes.functional import dequantize_4bit

    def built(name: str) -> dict[str, torch.nn.Module]:
        spec = make_spec(*training.SMALL, *SIZES, "parallel=ddp", f"adapter={name}", f"adapter.double_quant={double}")
        device = torch.device("cpu")
        tracker = memory.tracker(device)
        context = Context(spec=spec, directory=tmp_path, rank=0, world=1, device=device, memory=tracker)
        made = engine.build(context)
        assert all(value.dtype == torch.float32 for value in made._parameters)
        return {path: module for path, module in made._model.named_modules() if path.endswith(".base_layer")}

    whole, packed = built("lora"), built("qlora")
    assert whole.keys() == packed.keys()
    assert len(packed) == 2 * len(LINEARS)
    for path, module in packed.items():
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        assert weight.dtype == torch.uint8
        assert not weight.requires_grad
        values = dequantize_4bit(weight, module.quant_state)
        before = whole[path].weight
        assert isinstance(before, torch.Tensor)
        assert 2 * weight.numel() == before.numel()
        # NF4's values lie at most 0.304 of the largest of 64 apart (QLoRA, appendix E); its constants are rounded too.
        assert float((values - before).abs().max()) < 0.2 * float(before.abs().max())
        assert not torch.equal(values, before)
