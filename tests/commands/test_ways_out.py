"""A way out that `launch check` prints is typed again: the finding is gone, nothing else is wrong, the figures hold."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from launcher.base import machine
from launcher.cli import main
from tests.support.helpers import CPU_HOST

NODE = ("hardware=h100_80g", "cluster.gpus_per_node=8", "data=synthetic", "--json")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder of a machine without GPUs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)
    return tmp_path


def check(words: str, *more: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """The document of ``launch check``."""
    main(["check", *NODE, "--no-native", *shlex.split(words), *more])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "path", "ways"),
    [
        (
            "model=llama3_8b parallel=tp backend.extra={offload-modules:[core_attn]}",
            "backend.extra.offload-modules",
            ["checkpointing.offload_modules=[core_attn] +backend.extra.offload-modules=null"],
        ),
        (
            "model=llama3_8b parallel=tp backend.extra={attention-backend:unfused}",
            "backend.extra.attention-backend",
            ["model.attention=eager +backend.extra.attention-backend=null"],
        ),
        (
            "model=llama3_8b parallel=tp backend.extra={num-layers-per-virtual-pipeline-stage:4}",
            "backend.extra.num-layers-per-virtual-pipeline-stage",
            ["launch show parallel"],  # Layers of a chunk are not the number of chunks.
        ),
        ("train.profile.start=10", "train.profile.start", ["train.profile={start:10}"]),
        (
            "parallel=fsdp cpu_offload=true",  # DeepSpeed's way for the optimizer alone is not FSDP2's.
            "cpu_offload",
            ["zero.offload_parameters=cpu", "checkpointing=full checkpointing.offload=true"],
        ),
        ("pipeline_schedule=zbv", "pipeline_schedule", ["parallel.schedule=zbv"]),
        ("peft_type=lora", "peft_type", ["adapter=lora"]),
        ("backend=torchtitan", "backend", ["parallel=fsdp"]),
        (
            "model=deepseek_v3 parallel=3d cluster.nodes=64",
            "parallel.pipeline",
            ["parallel.first_stage_layers=30", "parallel.pipeline=1"],
        ),
        (
            "model=llama3_8b parallel=fsdp zero.offload_parameters=nvme zero.nvme_path=/nvme",
            "zero.offload_parameters",
            ["parallel=zero3 zero.max_reuse_distance=0"],
        ),
        (
            "model=llama3_8b adapter=lora adapter.targets=[q_proj,v_prj]",
            "adapter.targets",
            [
                "adapter.targets=[q_proj,v_proj]",
                "adapter.targets=[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]",
            ],
        ),
        (
            "model=llama3_8b model.hidden_size=4098 parallel=fsdp",
            "model.num_attention_heads",
            ["model.hidden_size=4096"],
        ),
        (
            "checkpointing=auto checkpointing.layers=3",
            "checkpointing.layers",
            ["checkpointing=full", "checkpointing=selective"],
        ),
    ],
)
def test_an_error_names_what_to_type(
    words: str, path: str, ways: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = {error["path"]: error["way_out"] for error in check(words, capsys=capsys)["errors"]}
    assert found[path] == ways


@pytest.mark.parametrize(
    ("words", "path", "ways"),
    [
        ("parallel.replicate=8", "zero.stage", ["parallel.replicate=1", "cluster.nodes=2"]),
        ("model=llama3_8b adapter=lora", "model.weights", ["model.weights=path/to/model", "adapter=none"]),
        ("model=llama3_8b adapter=lora adapter.dora=true", "model.weights", ["model.weights=path/to/model"]),
        ("model=mixtral_8x7b parallel.expert=8", "parallel.expert", ["checkpointing=full", "parallel.expert=1"]),
        ("model=mixtral_8x7b parallel.expert=8 checkpointing=full", "parallel.expert", ["parallel.expert=1"]),
    ],
)
def test_a_warning_offers_nothing_that_is_set_or_that_the_check_refuses(
    words: str, path: str, ways: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = {each["path"]: each["way_out"] for each in check(words, "parallel=fsdp", capsys=capsys)["warnings"]}
    assert found[path] == ways


def test_ranks_of_experts_that_a_model_lacks_are_no_matter_of_routing(capsys: pytest.CaptureFixture[str]) -> None:
    found = check("model=llama3_8b parallel=fsdp parallel.expert=2", capsys=capsys)
    assert [error["path"] for error in found["errors"]] == ["parallel.expert"]
    assert not [each for each in found["warnings"] if each["path"] == "parallel.expert"]


@pytest.mark.parametrize("words", ["model=llama3_8b parallel=zero3 train.micro_batch_size=8", "model=7b parallel=ddp"])
def test_beside_auto_a_way_out_names_the_recomputation_it_was_judged_with(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fixes = check(words, "checkpointing=auto", capsys=capsys)["fixes"]
    assert fixes
    for fix in fixes:
        pasted = check(words, "checkpointing=auto", *fix["overrides"], capsys=capsys)
        outside = sum(each["bytes"] for each in pasted["piles"] if each["pile"] in ("context", "communicators"))
        assert pasted["peak"]["needed_bytes"] + outside == fix["peak_bytes"]
        assert pasted["verdict"] in ("fits", "tight")


def test_the_last_choice_of_a_group_counts_for_auto_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = "model=llama3_8b parallel=fsdp"
    full, none = (check(words, f"checkpointing={mode}", capsys=capsys) for mode in ("full", "none"))
    assert check(words, "checkpointing=auto", "checkpointing=full", capsys=capsys) == full
    assert check(words, "checkpointing=full", "checkpointing=auto", capsys=capsys) == none
