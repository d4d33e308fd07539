"""Adapters of other programs that are more than LoRA's two matrices."""

from __future__ import annotations

import pytest

from launcher.base import registry
from launcher.importers import axolotl, llamafactory, megatron_bridge, torchtitan, torchtune

FILE = "model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\ndo_train: true\ndataset: alpaca_en_demo\n"


@pytest.mark.parametrize(
    ("text", "words", "left"),
    [
        (
            "finetuning_type: oft\noft_block_size: 64\noft_target: all\n",
            {"adapter=oft", "adapter.block_size=64"},
            set(),
        ),
        ("finetuning_type: oft\noft_rank: 8\n", {"adapter=oft"}, {"oft_rank"}),
        (
            "finetuning_type: oft\nquantization_bit: 4\ndouble_quantization: false\n",
            {"adapter=qoft", "adapter.double_quant=false"},
            set(),
        ),
        ("finetuning_type: lora\npissa_init: true\n", {"adapter=lora", "adapter.pissa=16"}, set()),
        ("finetuning_type: lora\npissa_init: true\npissa_iter: -1\n", {"adapter=lora", "adapter.pissa=0"}, set()),
    ],
)
def test_oft_and_pissa_of_llama_factory_are_said(text: str, words: set[str], left: set[str]) -> None:
    found = llamafactory.read(FILE + text, "file.yaml")
    assert words <= set(found.overrides)
    assert {each.key for each in found.left_out if each.matters} == left


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("activation_dtype: int8, weight_dtype: int4", ["precision.qat=int8_int4_asymmetric"]),
        ("weight_dtype: int4, group_size: 64", ["precision.qat=int4", "precision.qat_group_size=64"]),
        (
            "weight_dtype: nvfp4, activation_dtype: nvfp4, group_size: 16",
            ["precision.qat=nvfp4", "precision.qat_group_size=16"],
        ),
        ("weight_dtype: mxfp4, activation_dtype: mxfp4, fake_quant_after_n_steps: 9", ["precision.qat=mxfp4"]),
        ("weight_dtype: mxfp4", ["precision.qat=mxfp4"]),
        ("weight_dtype: float8, activation_dtype: float8", []),
    ],
)
def test_axolotls_quantization_aware_training_is_said_where_torchao_rounds_to_4_bits(
    text: str, words: list[str]
) -> None:
    found = axolotl.read(f"base_model: meta-llama/Llama-3.2-1B\nqat: {{{text}}}\n", "file.yaml")
    assert [word for word in found.overrides if "qat" in word] == words
    left = {each.key for each in found.left_out if each.matters and each.key.startswith("qat.")}
    assert left == (set() if words else {"qat.weight_dtype", "qat.activation_dtype"})


def test_axolotls_weights_in_nvfp4_alone_are_refused_as_torchao_does() -> None:
    found = axolotl.read("base_model: meta-llama/Llama-3.2-1B\nqat: {weight_dtype: nvfp4}\n", "file.yaml")
    assert [each.key for each in found.left_out if each.matters and each.key.startswith("qat.")] == ["qat.weight_dtype"]
    assert not [word for word in found.overrides if "qat" in word]


def test_torchtunes_quantizer_is_said_with_its_groups_and_its_start() -> None:
    quantizer = "quantizer: {_component_: torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer}\n"
    found = torchtune.read(quantizer + "fake_quant_after_n_steps: 1000\n", "file.yaml")
    words = {"precision.qat=int8_int4", "precision.qat_group_size=256", "precision.qat_after=1000"}
    assert {word for word in found.overrides if "qat" in word} == words


def test_what_lora_alone_reads_has_no_effect_beside_oft() -> None:
    found = llamafactory.read(FILE + "finetuning_type: oft\nlora_rank: 64\nuse_dora: true\n", "file.yaml")
    assert not [word for word in found.overrides if word.startswith(("adapter.rank", "adapter.dora", "adapter.alpha"))]
    idle = [each.key for each in found.left_out if each.effect == "no effect: OFT has no low-rank matrices"]
    assert idle == ["lora_rank", "use_dora"]


@pytest.mark.parametrize(
    ("kind", "text", "key", "effect"),
    [
        ("llamafactory", "fp8: true\nbf16: false\n", "bf16", "the run computes in fp8 here: set precision"),
        ("llamafactory", "fp8: true\nfp16: true\n", "fp16", "the run computes in fp8 here: set precision"),
        (
            "axolotl",
            "adapter: qlora\nload_in_8bit: true\nload_in_4bit: true\n",
            "load_in_4bit",
            "axolotl refuses weights in 4 bits and in 8: set adapter.quant_type",
        ),
        ("axolotl", "bf16: true\nfp16: true\n", "fp16", "no effect: bf16 is chosen before it"),
        ("axolotl", "fp16: half\n", "fp16", "the run computes in bf16 here: set precision"),
        ("axolotl", "fsdp: [wrapped]\n", "fsdp", "wrapped: launch does not know this FSDP option: set parallel"),
        (
            "axolotl",
            "liger_rope: true\nliger_rms_norm: false\n",
            "liger_rms_norm",
            "launch enables Liger's norms, rotation and MLPs together, with the same maths",
        ),
    ],
)
def test_words_that_another_word_overrules_are_said(kind: str, text: str, key: str, effect: str) -> None:
    found = registry.load("importers", kind).read(text, "file.yaml")
    assert {each.key: each.effect for each in found.left_out}[key] == effect


def test_a_kernel_of_the_optimizer_that_torchtune_switches_off_is_off_here() -> None:
    text = "optimizer:\n  _component_: torch.optim.{}\n  fused: {}\n"
    for kind, fused, said in (("AdamW", "false", True), ("AdamW", "true", False)):
        found = torchtune.read(text.format(kind, fused), "file.yaml")
        assert ("optimizer.fused=false" in found.overrides) is said


BRIDGE = """
def tuned(scheme: str = "lora"):
    cfg = _peft_common()
    found = default_peft_config(scheme)
    if isinstance(scheme, str) and scheme.lower() in {"lora", "dora"}:
        found.dim = 8
        found.target_modules = ["linear_q_down_proj", "linear_kv_up_proj"]
    if scheme == "none" or not scheme:
        found.dim = 64
    cfg.peft = found
    return cfg
"""


def test_conditions_on_known_words_are_followed_in_a_recipe_of_megatron_bridge() -> None:
    found = megatron_bridge.read(BRIDGE, "file.py")
    assert {"adapter.rank=8", "adapter.targets=[q_a_proj,kv_b_proj]"} <= set(found.overrides)
    assert [note for note in found.not_understood if "not followed" in note] == [
        "line 8 is not followed: if scheme == 'none' or not scheme:"
    ]


def test_words_of_torchtitan_that_nothing_here_does_are_said() -> None:
    text = '[lr_scheduler]\ndecay_type = "step"\n[model]\nconverters = ["float8"]\n[float8]\nfilter_fqns = ["wk"]\n'
    found = torchtitan.read(text, "file.toml")
    assert {each.key for each in found.left_out if each.matters} >= {"lr_scheduler.decay_type", "float8.filter_fqns"}
