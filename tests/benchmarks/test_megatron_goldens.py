"""Megatron-LM's functional tests as the scoreboard reads them; the run is written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.memory.adapters import megatron_goldens
from benchmarks.memory.row import Row

ARGUMENTS: dict[str, Any] = {
    "--num-layers": 4,
    "--hidden-size": 256,
    "--num-attention-heads": 4,
    "--seq-length": 512,
    "--max-position-embeddings": 512,
    "--micro-batch-size": 2,
    "--global-batch-size": 32,
    "--tensor-model-parallel-size": 2,
    "--pipeline-model-parallel-size": 2,
    "--bf16": True,
    "--train-iters": 10,
    "--lr": 0.001,
}
RUN: dict[str, Any] = {
    "id": "gpt/by_hand/dev/dgx_a100",
    "machine": "dgx_a100",
    "source": "NVIDIA/Megatron-LM@000000000000:golden_values.json",
    "gpus": 8,
    "nodes": 1,
    "vocab_size": 1000,
    "env_vars": {},
    "mem_allocated_bytes": 1,
    "mem_max_allocated_bytes": 2,
    "rank": "last",
}


def row_of(folder: Path, *, arguments: dict[str, Any] | None = None, **changes: Any) -> Row:
    """The row of a file of one run."""
    path = folder / "megatron_goldens.jsonl"
    path.write_text(json.dumps(RUN | {"args": ARGUMENTS | (arguments or {})} | changes))
    (row,) = megatron_goldens.rows(path)
    return row


def test_the_last_stage_was_measured_and_the_batch_brought_a_mask(tmp_path: Path) -> None:
    row = row_of(tmp_path)
    assert row.spec is not None
    assert (row.stage, row.measured) == (1, {"static": 1, "allocated": 2})
    assert row.spec.backend.argument("no-create-attention-mask-in-dataloader") is False


def test_a_run_of_unknown_size_is_scored_where_every_size_is_predicted_alike(tmp_path: Path) -> None:
    assert row_of(tmp_path, gpus=None, nodes=None).spec is not None
    sharded = row_of(tmp_path, gpus=None, nodes=None, arguments={"--use-distributed-optimizer": True})
    assert sharded.left_out == "the number of GPUs is not stated, and it matters"


@pytest.mark.parametrize(("commit", "workspace"), [("2aeaf56cb73f", ":4096:2:16:8"), ("5fe3f06658b3", None)])
def test_some_containers_have_small_workspaces_on_blackwell(tmp_path: Path, commit: str, workspace: str | None) -> None:
    row = row_of(tmp_path, machine="dgx_gb200", source=f"NVIDIA/Megatron-LM@{commit}:golden_values.json")
    assert row.spec is not None
    assert row.spec.cluster.environment.get("CUBLAS_WORKSPACE_CONFIG") == workspace


@pytest.mark.parametrize(
    ("arguments", "attention"), [({}, "eager"), ({"--attention-backend": "flash"}, "flash"), (None, "sdpa")]
)
def test_a_deterministic_run_of_the_older_container_has_no_kernel_but_scores_in_full(
    tmp_path: Path, arguments: dict[str, Any] | None, attention: str
) -> None:
    deterministic = {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": 0} if arguments is not None else {}
    identity = "gpt/by_hand/lts/dgxa100_dracooci"
    row = row_of(tmp_path, arguments=arguments, id=identity, machine="dgxa100_dracooci", env_vars=deterministic)
    assert row.spec is not None
    assert row.spec.model.attention == attention


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"vocab_size": None}, "the vocabulary is not stated"),
        ({"arguments": {"--export-kd-cfg": "kd.yaml"}}, "distillation"),
        ({"arguments": {"--hidden-size": "wide"}}, "does not parse: arguments.json: --hidden-size"),
    ],
)
def test_a_run_that_cannot_be_expressed_is_counted(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    assert row_of(tmp_path, **changes).left_out == reason
