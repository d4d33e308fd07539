"""Versions of the frameworks: what is driven, and what an older one lacks, is said before the job starts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from launcher import backends
from launcher.base import registry
from launcher.job import versions
from launcher.job.versions import Environment
from launcher.preflight import job_python
from tests.support.helpers import make_spec

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def refused(*words: str, **found: str) -> list[str]:
    spec = make_spec("model=tiny", *words)
    needs = backends.of(spec).profile.needs
    found_errors = versions.unusable(spec, job_python.needed(spec), needs, Environment(packages=found))
    return [f"{error}: {' '.join(error.way_out)}" for error in found_errors]


def test_the_oldest_versions_are_those_that_pip_may_install() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [
        *project["dependencies"],
        *extras["fsdp"],
        *extras["deepspeed"],
        *extras["megatron"],
        *extras["trl"],
        *extras["eval"],
    ]
    ranges = dict(text.split(">=") for text in texts if ">=" in text)
    oldest = {name: ranges[name].partition(",")[0].removesuffix(".0a0") for name in versions.OLDEST}
    assert oldest == versions.OLDEST
    below = {name: ranges[name].partition(",<")[2] for name in versions.OLDEST if "<" in ranges[name]}
    assert below == versions.BELOW


def test_pip_leaves_the_pre_release_of_torch_that_a_container_brings() -> None:
    """Without a pre-release in the range pip would put a torch of its own in the place of NVIDIA's."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    [torch] = [text for text in project["optional-dependencies"]["fsdp"] if text.startswith("torch>=")]
    assert Requirement(torch).specifier.contains("2.11.0a0+5228986c39.nv26.03")
    assert not Requirement(torch).specifier.contains("2.10.1")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.15.0+cu132", (2, 15, 0)),
        ("2.8.0a0", (2, 8, 0)),
        ("2.8.0a0+5228986c39.nv25.05", (2, 8, 0)),
        ("2.9.0.dev20250801+cu128", (2, 9, 0)),
        ("2.9.0rc1", (2, 9, 0)),
        ("4.57.0.dev0", (4, 57, 0)),
        ("0.18.9", (0, 18, 9)),
        ("x", ()),
    ],
)
def test_the_leading_numbers_of_a_version_are_compared(text: str, numbers: tuple[int, ...]) -> None:
    assert versions.numbers(text) == numbers


def test_a_pre_release_counts_as_its_release() -> None:
    assert refused("parallel=fsdp", torch="2.11.0a0+5228986c39.nv26.03", transformers="5.17.0.dev0") == []
    [error] = refused("parallel=fsdp", torch="2.7.0a0+7c8ec84dab.nv25.03", transformers="5.17.0")
    assert "torch 2.7.0a0+7c8ec84dab.nv25.03 is installed; this version of launch supports torch from 2.11" in error


def test_a_version_above_the_range_is_refused_too() -> None:
    assert not versions.is_driven("megatron-core", "0.20.0")
    assert not versions.is_driven("megatron-core", "0.18.2")
    assert all(versions.is_driven("megatron-core", text) for text in ("0.19.0", "0.19.2"))
    assert versions.is_driven("submitit", "0.1"), "of it any version will do"


def test_a_package_that_is_too_old_is_refused_with_the_line_that_installs_a_newer_one() -> None:
    [error] = refused("parallel=fsdp", torch="2.10.1", transformers="5.17.0")
    assert "torch 2.10.1 is installed; this version of launch supports torch from 2.11" in error
    assert "pip install 'torch>=2.11'" in error


def test_a_setting_that_the_installed_version_lacks_is_refused_and_no_other() -> None:
    assert refused("parallel=fsdp", torch="2.12", transformers="5.23") == []
    words = ("parallel=fsdp", "model.family=moe", "model.num_experts=4", "model.num_experts_per_tok=2",
             "model.moe_intermediate_size=64", "cluster.gpus_per_node=4", "parallel.expert=2")  # fmt: skip
    [error] = refused(*words, torch="2.12", transformers="5.23")
    assert (
        "parallel.expert=2: torch 2.12 is installed, which has not been tried with expert parallel gradients" in error
    )
    assert "pip install 'torch>=2.15' parallel.expert=1" in error
    assert refused(*words, torch="2.15.0", transformers="5.23.0") == []


def test_a_package_of_unknown_version_is_no_error() -> None:
    assert refused("parallel=fsdp", "parallel.expert=2") == []


def test_packed_weights_are_sharded_from_the_torch_on_that_asks_no_gradient_of_them() -> None:
    old = {"torch": "2.11.0", "transformers": "5.17.0"}
    [error] = refused("adapter=qlora", "parallel=fsdp", **old)
    assert error.startswith("adapter.name='qlora'")
    assert error.endswith("2.12 and later can: pip install 'torch>=2.12' parallel=ddp")
    assert refused("adapter=qlora", "parallel=ddp", **old) == []
    assert refused("adapter=qlora", "parallel=fsdp", **{**old, "torch": "2.12.0"}) == []


def test_pipeline_stages_need_the_torch_that_takes_micro_batches() -> None:
    words = ("parallel=fsdp_pp", "parallel.pipeline=2", "train.gradient_accumulation=2", "cluster.gpus_per_node=2")
    [error] = refused(*words, torch="2.13.0", transformers="5.17.0")
    assert error.startswith("parallel.pipeline=2: torch 2.13.0 is installed")
    assert error.endswith("2.14 and later can: pip install 'torch>=2.14' parallel.pipeline=1")
    assert refused(*words, torch="2.14.0", transformers="5.17.0") == []


def test_gated_linear_attention_on_hopper_needs_the_triton_that_gets_its_gradients_right() -> None:
    words = ("model=qwen3_next_80b_a3b", "parallel=fsdp", "cluster.gpus_per_node=8")
    old = {"torch": "2.15.0", "transformers": "5.17.0", "triton": "3.6.0"}
    [error] = refused(*words, "hardware=h100_80g", **old)
    assert "triton 3.6.0 is installed, which gets gradients of gated linear attention wrong on Hopper" in error
    assert error.endswith("pip install 'triton>=3.7.1' pip install tilelang")
    assert refused(*words, "hardware=h100_80g", **{**old, "triton": "3.7.1"}) == []
    assert refused(*words, "hardware=a100_80g", **old) == []
    assert refused("model=7b", *words[1:], "hardware=h100_80g", **old) == []


def test_a_python_is_asked_about_every_package_that_some_run_imports() -> None:
    """One that it is not asked about would be called missing."""
    profiles = [registry.load("backends", name).profile for name in registry.names("backends")]
    imported = {name for profile in profiles for name in (*profile.packages, profile.framework) if name is not None}
    borrowed = {name for profile in profiles for each in profile.borrowed for name in each.packages}
    needed = {need.package for profile in profiles for need in profile.needs}
    assert imported | borrowed | needed <= {*versions.PACKAGES}
