"""Every option of every group, and every recipe: each composes, holds no key that is not there, and has its source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.base import registry
from launcher.base.package import shipped
from launcher.base.units import GIB
from launcher.config.catalog import Catalog
from launcher.config.open_values import dtypes
from launcher.estimate.rank.counts import parameter_counts
from launcher.rules import model
from tests.support.helpers import ask, make_spec

CONF = shipped("conf")
CATALOG = Catalog(folder=CONF.parent)
OPTIONS = [(group, option) for group, options in CATALOG.groups.items() if group != "recipe" for option in options]

PARAMETERS = {
    "125m": 125_226_240,
    "350m": 355_871_744,
    "1b": 1_235_814_400,
    "3b": 3_212_749_824,
    "7b": 6_738_415_616,
    "13b": 13_015_864_320,
    "30b": 32_528_943_616,
    "70b": 68_976_648_192,
    "175b": 174_604_259_328,
    "deepseek_v3": 671_026_404_352,
    "deepseek_v3_2": 671_877_929_216,
    "gemma2_2b": 2_614_341_888,
    "glm5": 743_911_199_232,
    "gpt2": 124_439_808,
    "gpt2_large": 774_030_080,
    "gpt2_medium": 354_823_168,
    "gpt2_xl": 1_557_611_200,
    "gpt3_175b": 174_604_259_328,
    "granite4_h_small": 32_207_337_984,
    "granite4_h_tiny": 6_939_037_248,
    "jamba_mini": 51_570_323_328,
    "kimi_k2": 1_026_408_209_408,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama2_7b": 6_738_415_616,
    "llama3_1b": 1_235_814_400,
    "llama3_3b": 3_212_749_824,
    "glm4_5_air": 106_852_245_504,
    "llama3_405b": 405_853_388_800,
    "llama3_70b": 70_553_706_496,
    "llama3_8b": 8_030_261_248,
    "llama4_scout": 107_769_861_120,
    "minimax_m2": 228_689_748_992,
    "mixtral_8x22b": 140_620_634_112,
    "mixtral_8x7b": 46_702_792_704,
    "nemotron3_nano_30b_a3b": 31_577_937_344,
    "nemotron3_super_120b_a12b": 120_668_687_360,
    "qwen3_next_80b_a3b": 79_674_391_296,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_32b": 32_762_123_264,
    "qwen3_8b": 8_190_735_360,
    "tiny": 3_033_344,
}
"""Counted in transformers 5.23 with the matching config on the meta device; the totals of the published weights."""

ACTIVE = {
    "mixtral_8x7b": 12_879_925_248,
    "mixtral_8x22b": 39_152_031_744,
    "deepseek_v3": 37_552_282_624,
    "deepseek_v3_2": 38_403_807_488,
    "glm5": 41_784_709_632,
    "kimi_k2": 32_861_477_888,
    "llama4_scout": 17_172_894_720,
    "minimax_m2": 11_030_537_216,
    "qwen3_30b_a3b": 3_353_032_704,
    "glm4_5_air": 13_424_123_904,
    "granite4_h_small": 8_803_121_664,
    "granite4_h_tiny": 1_465_470_528,
    "jamba_mini": 12_110_311_296,
    "nemotron3_nano_30b_a3b": 3_580_073_408,
    "nemotron3_super_120b_a12b": 12_770_216_960,
    "qwen3_next_80b_a3b": 3_874_929_408,
}
"""12.9 B and 39 B as Mistral states them, 37 B as arXiv:2412.19437 does, 3.3 B and 12 B (without tables) by names.

9 B, 1 B, 12 B, 3 B, 12 B and 3 B (without tables) of the hybrids by names.
"""

NEEDED: dict[tuple[str, str], list[str]] = {
    ("data", "text"): [],
    ("data", "tokens"): ["data.path=train.bin"],
    ("data", "huggingface"): ["data.path=a/dataset"],
}
"""What an option leaves to the user."""


def read(group: str, option: str) -> dict[str, Any]:
    content = yaml.safe_load((CONF / group / f"{option}.yaml").read_text())
    assert isinstance(content, dict)
    return content


def own_keys(group: str, option: str) -> dict[str, Any]:
    """The keys that an option sets in its own group."""
    content = {key: value for key, value in read(group, option).items() if key != "defaults"}
    return content.get("parallel", {}) if group == "parallel" else content


def test_the_options_of_the_contract_are_there() -> None:
    models = """tiny 125m 350m 1b 3b 7b 13b 30b 70b 175b llama3_8b llama3_70b llama3_405b qwen3_32b mixtral_8x7b
        mixtral_8x22b deepseek_v3 gpt2 gpt3_175b"""
    gpus = "a100_40g a100_80g h100_80g h200 b200 mi300x v100_32g rtx4090 l40s auto b300 gb200 gb300 a800 h800 mi325x"
    gpus += " mi350x mi355x h100_96g a6000 h20 l4 rtx5090 rtx_pro_6000"
    presets = "ddp fsdp hsdp zero1 zero2 zero3 tp tp_pp 3d"
    assert set(models.split()) <= set(CATALOG.groups["model"])
    assert set(gpus.split()) <= set(CATALOG.groups["hardware"])
    assert set(presets.split()) <= set(CATALOG.groups["parallel"])


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_an_option_composes_and_parses(group: str, option: str) -> None:
    make_spec(f"{group}={option}", *NEEDED.get((group, option), []))


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_an_option_holds_only_keys_that_its_base_names(group: str, option: str) -> None:
    base = {key for key in read(group, "_base") if key != "defaults"}
    assert set(own_keys(group, option)) <= base


@pytest.mark.parametrize(
    ("group", "option"), [pair for pair in OPTIONS if pair[0] in ("model", "hardware", "parallel")]
)
def test_an_option_that_is_a_fact_carries_its_own_name(group: str, option: str) -> None:
    assert getattr(make_spec(f"{group}={option}"), group).name == option


@pytest.mark.parametrize(("group", "option"), [pair for pair in OPTIONS if pair[0] in ("model", "hardware")])
def test_an_option_that_states_facts_has_a_source(group: str, option: str) -> None:
    source = getattr(make_spec(f"{group}={option}"), group).source
    assert len(source) >= len("this project")
    assert source != "custom"


@pytest.mark.parametrize(("group", "option"), [pair for pair in OPTIONS if pair[0] == "model"])
def test_a_model_sets_only_what_differs_from_its_base(group: str, option: str) -> None:
    [parent, _] = read(group, option)["defaults"]
    inherited = read(group, parent)
    same = {key for key, value in own_keys(group, option).items() if key != "name" and inherited.get(key) == value}
    assert not same - {"source"}


@pytest.mark.parametrize("option", CATALOG.groups["model"])
def test_a_model_has_the_parameters_of_its_name(option: str) -> None:
    spec = make_spec(f"model={option}")
    total, active = parameter_counts(spec, registry.load("families", spec.model.family))
    assert total == PARAMETERS[option]
    assert active == ACTIVE.get(option, total)


def test_a_models_comment_states_its_parameters() -> None:
    assert len(PARAMETERS) > 20
    for option, total in PARAMETERS.items():
        if option != "tiny":
            comment = (CONF / "model" / f"{option}.yaml").read_text().splitlines()[0]
            assert f"{total:,} parameters" in comment, option


def test_a_size_in_a_models_name_is_its_size() -> None:
    scale = {"m": 10**6, "b": 10**9}
    sized = [name for name in PARAMETERS if name[:-1].isdigit()]
    assert len(sized) == 9
    for name in sized:
        assert PARAMETERS[name] == pytest.approx(int(name[:-1]) * scale[name[-1]], rel=0.25), name


def test_a_gpu_with_a_memory_in_its_name_has_that_memory() -> None:
    named = [name for name in CATALOG.groups["hardware"] if re.fullmatch(r"\w+_\d+g", name)]
    assert "a100_80g" in named
    for name in named:
        nominal = int(name.rpartition("_")[2].removesuffix("g")) * GIB
        memory = make_spec(f"hardware={name}").hardware.memory_bytes
        assert memory is not None
        assert 0.98 * nominal <= memory <= nominal, name


def test_a_gpu_states_its_compute_capability_and_has_the_formats_that_follow_from_it() -> None:
    gpus = [
        make_spec(f"hardware={name}").hardware for name in CATALOG.groups["hardware"] if name not in ("auto", "cpu")
    ]
    assert len(gpus) > 10
    for gpu in gpus:
        assert gpu.compute_capability is not None, gpu.name
        assert gpu.dtypes == dtypes(gpu.compute_capability), gpu.name


GPUS = tuple(name for name in CATALOG.groups["hardware"] if name not in ("auto", "cpu"))


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_states_its_speed_with_its_source(name: str) -> None:
    gpu = make_spec(f"hardware={name}").hardware
    assert "; speed by " in gpu.source
    stated = (gpu.flops_fp32, gpu.flops_fp16, gpu.memory_bandwidth, gpu.cores, gpu.link_gpus)
    assert all(stated)
    narrow = {"bf16": gpu.flops_bf16, "fp8": gpu.flops_fp8, "fp4": gpu.flops_fp4}
    assert {name for name, flops in narrow.items() if flops is not None} == narrow.keys() & set(gpu.dtypes)


@pytest.mark.parametrize("name", GPUS)
def test_a_gpus_figures_are_dense_and_in_their_units(name: str) -> None:
    """Matrix units double with each halving of the format; no card's bf16 is above 2.5 PFLOPS but that of MI355X."""
    gpu = make_spec(f"hardware={name}").hardware
    fp32, fp16, memory, link, pcie = (
        float(number or 0)
        for number in (gpu.flops_fp32, gpu.flops_fp16, gpu.memory_bandwidth, gpu.link_bandwidth, gpu.pcie_bandwidth)
    )
    assert 15e12 < fp32 < fp16 <= 2.52e15
    assert gpu.flops_bf16 in (None, fp16)
    assert gpu.flops_fp8 is None or gpu.flops_fp8 == pytest.approx(2 * fp16, rel=0.02)
    assert gpu.flops_fp4 is None or 2 <= gpu.flops_fp4 / (gpu.flops_fp8 or 1) <= 4
    assert memory <= 8e12
    assert pcie <= link <= 900e9
    assert link < memory
    assert (gpu.network_bandwidth or 0) <= min(link, 100e9)
    assert gpu.link_gpus in (1, 2, 4, 8, 16, 72)
    assert gpu.link_gpus != 1 or link == pcie
    assert 50 <= (gpu.cores or 0) <= 304


def test_an_h100_has_the_figures_of_its_whitepaper() -> None:
    """NVIDIA H100 Tensor Core GPU Architecture: 66.9, 989.4 and 1,978.9 TFLOPS dense, 3,352 GB/s, 132 SMs, NVLink of
    900 GB/s both ways."""
    gpu = make_spec("hardware=h100_80g").hardware
    assert (gpu.flops_fp32, gpu.flops_bf16, gpu.flops_fp8) == (66.9e12, 989.4e12, 1978.9e12)
    assert (gpu.memory_bandwidth, gpu.cores, gpu.link_bandwidth) == (3352e9, 132, 900e9 / 2)
    assert (gpu.link_gpus, gpu.network_bandwidth) == (8, 400e9 / 8)


def test_an_a100_has_the_figures_of_its_datasheet() -> None:
    """NVIDIA A100 datasheet: 19.5 and 312 TFLOPS, 2,039 GB/s, NVLink of 600 and PCIe of 64 GB/s both ways."""
    gpu = make_spec("hardware=a100_80g").hardware
    assert (gpu.flops_fp32, gpu.flops_bf16, gpu.flops_fp8) == (19.5e12, 312e12, None)
    assert (gpu.memory_bandwidth, gpu.link_bandwidth, gpu.pcie_bandwidth) == (2039e9, 600e9 / 2, 64e9 / 2)


def test_a_card_for_export_has_the_compute_of_its_twin_and_slower_links() -> None:
    for cut, whole in (("a800", "a100_80g"), ("h800", "h100_80g")):
        one, other = make_spec(f"hardware={cut}").hardware, make_spec(f"hardware={whole}").hardware
        assert (one.flops_bf16, one.memory_bandwidth) == (other.flops_bf16, other.memory_bandwidth)
        assert one.link_bandwidth == 400e9 / 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v100_32g", ("fp32", "fp16")),
        ("a100_80g", ("fp32", "fp16", "bf16")),
        ("h100_80g", ("fp32", "fp16", "bf16", "fp8")),
        ("cpu", ("fp32", "fp16", "bf16", "fp8")),
    ],
)
def test_a_gpu_has_the_formats_of_its_generation(name: str, expected: tuple[str, ...]) -> None:
    assert make_spec(f"hardware={name}").hardware.dtypes == expected


def test_bf16_on_a_v100_is_refused_with_what_it_has() -> None:
    [error] = model.check(make_spec("hardware=v100_32g", "precision=bf16"))
    assert error.rule == "Tesla V100-SXM2-32GB supports fp32, fp16"
    assert error.way_out[:2] == ("precision=fp16", "precision=fp32")


def test_an_h100_has_the_bytes_that_the_driver_reports() -> None:
    assert make_spec("hardware=h100_80g").hardware.memory_bytes == 85_520_809_984


def test_no_yaml_file_lies_outside_a_group() -> None:
    stray = [path for path in CONF.glob("*.yaml") if path.name != "launch.yaml"]
    assert stray == []
    assert all((folder / "_base.yaml").is_file() for folder in CONF.iterdir() if folder.is_dir())


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcde", "bcdef", strict=True)
)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (BOMB, "it holds more than 100,000 values, with aliases expanded"),
        (f"name: 1{':1' * 1000}", "a number may have at most 40 characters"),
        ("[" * 100, "it is nested deeper than 12"),
        (f"name: {'x' * (1 << 20)}", "it cannot be read: it is larger than 1 MiB"),
        ("time_limit_min: 24:00:00", "24:00:00 is a base-60 number in YAML 1.1: if it is text, quote it"),
        ("hidden_size: 0x_", "it does not compose: invalid literal for int()"),
    ],
)
def test_a_file_of_ones_own_is_read_within_the_limits(text: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "mine.yaml").write_text(text)
    [error, *_] = ask("model=mine", folder=tmp_path).errors
    assert error.rule.startswith(rule)


def test_what_else_lies_in_a_folder_of_ones_own_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "other.yaml").write_bytes(b"\xff")
    (tmp_path / "conf" / "model" / "gone.yaml").symlink_to("nowhere")
    (tmp_path / "conf" / "model" / "anchored.yaml").write_text("a: &a 1\nb: *a\n")
    for name in ("round", "about"):
        (tmp_path / "conf" / name).symlink_to(tmp_path / "conf")
    assert ask("model=tiny", folder=tmp_path).require().model.name == "tiny"
