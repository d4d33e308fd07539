"""Rows of the measured files as runs; the lines are invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.speed.adapters import bigscience_logs, fms_acceleration, nanotron_playbook, published, throughput
from benchmarks.speed.row import Row
from launcher.spec import RunSpec
from tests.support.measured_lines import BIGSCIENCE, FMS_ACCELERATION
from tests.support.measured_lines import NANOTRON as NANOTRON_RUN
from tests.support.measured_speed import LINE, write_lines


def the_row(folder: Path, **change: str) -> Row:
    (row,) = throughput.rows(write_lines(folder / "throughput.csv", [LINE | change]))
    return row


def spec_of(row: Row) -> RunSpec:
    assert row.left_out is None
    assert row.spec is not None
    return row.spec


def test_a_row_is_the_run_that_its_columns_say(tmp_path: Path) -> None:
    row = the_row(tmp_path)
    spec = spec_of(row)
    assert (spec.parallel.tensor, spec.parallel.pipeline, spec.data_degree, spec.gpus) == (2, 2, 4, 16)
    assert (spec.global_batch_size, spec.micro_batch_size, spec.sequence_length) == (64, 1, 2048)
    assert (spec.zero.stage, spec.checkpointing.mode, spec.hardware.name) == (1, "none", "a100_80g")
    assert (row.family, row.framework, row.gpu, row.measured) == ("mine", "NeMo", "a100_80g", 3000.0)
    assert row.backend is not None
    assert row.backend.execution(spec).framework == "NeMo"


def test_a_blank_is_what_the_framework_says_or_leaves_the_row_out(tmp_path: Path) -> None:
    assert spec_of(the_row(tmp_path, zero="", act_ckpt="")).zero.stage == 1
    assert the_row(tmp_path, framework="InternEvo", zero="").left_out == "what is sharded is not stated"
    assert the_row(tmp_path, vpp="").left_out == "it is not stated whether stages are interleaved"
    assert spec_of(the_row(tmp_path, vpp="", pp="1", dp="8")).parallel.virtual_pipeline == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"framework": "MindSpeed-LLM"}, "a framework of whose steps nothing is known"),
        ({"gpu": "TPU v5p"}, "no such GPU in conf/hardware"),
        ({"tokens_s_gpu": ""}, "no tokens a second"),
        ({"tokens_s_gpu": "", "measured": "OOM", "micro_batch": ""}, "it ran out of memory"),
        ({"micro_batch": ""}, "the layout is not stated in full"),
        ({"dp": "2"}, "the degrees do not multiply to the GPUs"),
        ({"gpus": "12", "dp": "3"}, "a node is not full"),
        ({"task": "lora"}, "the rank of the adapters is not stated"),
        ({"gpus": "all"}, "a number that cannot be read"),
        ({"hidden": "4.5"}, "does not parse: model.hidden_size"),
    ],
)
def test_a_row_that_cannot_be_said_is_left_out_with_its_reason(
    tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    row = the_row(tmp_path, **change)
    assert row.spec is None
    assert row.left_out is not None
    assert row.left_out.startswith(reason)


@pytest.mark.parametrize("change", [{"measured": "OOM"}, {"notes": "kernel: torch; OOM"}])
def test_a_run_that_ran_out_of_memory_has_no_speed_and_still_is_a_run(tmp_path: Path, change: dict[str, str]) -> None:
    row = the_row(tmp_path, tokens_s_gpu="", **change)
    assert (row.oom, row.left_out, row.measured) == (True, "it ran out of memory", 0.0)
    assert row.spec is not None


def test_notes_name_kernels_and_sequence_parallelism(tmp_path: Path) -> None:
    row = the_row(tmp_path, framework="Aleph Alpha", notes="kernel: torch; sequence parallel: 1")
    assert row.backend is not None
    assert row.backend.executes.attention == "unfused"
    assert spec_of(row).parallel.sequence
    row = the_row(tmp_path, framework="Aleph Alpha", notes="kernel: flash_attention2 + RMS kernel; other")
    assert row.backend is not None
    assert (row.backend.executes.attention, row.backend.executes.fused_norm) == ("flash_2", True)
    assert not spec_of(row).parallel.sequence


def test_a_run_that_waits_for_the_host_has_no_graphs(tmp_path: Path) -> None:
    usual, noted = the_row(tmp_path, framework="Megatron-Bridge"), "tiny batch: launch-bound"
    waiting = the_row(tmp_path, framework="Megatron-Bridge", notes=noted)
    assert usual.backend is not None
    assert waiting.backend is not None
    assert (usual.backend.executes.graphs, waiting.backend.executes.graphs) == (True, False)


def test_layers_that_do_not_divide_leave_room_for_embedding_and_head(tmp_path: Path) -> None:
    spec = spec_of(the_row(tmp_path, layers="30", vpp="8"))
    assert (spec.parallel.first_stage_layers, spec.parallel.last_stage_layers) == (15, 15)
    assert spec_of(the_row(tmp_path)).parallel.first_stage_layers is None


def test_vtrain_takes_the_vocabulary_of_its_scripts(tmp_path: Path) -> None:
    row = the_row(tmp_path, problem="vtrain|x", framework="Megatron-DeepSpeed", model="GPT 3.6B", vocab="")
    assert spec_of(row).model.vocab_size == 51200
    assert the_row(tmp_path, vocab="").left_out == "the shape of the model is not stated"


def test_a_published_run_is_read_as_one_of_throughput(tmp_path: Path) -> None:
    line = {
        **{name: LINE[name] for name in ("id", "hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "notes")},
        "framework": "torchtitan",
        "framework_version": "1",
        "gpu": "A100-80GB",
        "n_gpus": "8",
        "model_name": "Llama-2-7B",
        "seq_len": "4096",
        "micro_batch": "2",
        "grad_accum": "",
        "global_batch": "",
        "dp": "8",
        "tp": "",
        "pp": "",
        "vpp": "",
        "cp": "",
        "ep": "",
        "zero_stage": "fsdp2",
        "act_ckpt": "op",
        "precision": "bf16 compute, fp32 params",
        "compile": "true",
        "lora_rank": "",
        "quant": "",
        "offload": "none",
        "oom": "false",
        "tokens_per_s_per_gpu": "4000",
        "soft": "False",
    }
    (row,) = published.rows(write_lines(tmp_path / "published.csv", [line]))
    spec = spec_of(row)
    assert (spec.data_degree, spec.global_batch_size, spec.checkpointing.mode) == (8, 16, "selective")
    assert row.backend is not None
    assert row.backend.executes.compiled
    (row,) = published.rows(write_lines(tmp_path / "published.csv", [line | {"compile": ""}]))
    assert row.left_out == "it is not stated whether it was compiled"
    fp8 = line | {"precision": "bf16 compute, fp32 params, float8 matmul"}
    (row,) = published.rows(write_lines(tmp_path / "published.csv", [fp8]))
    assert spec_of(row).precision.recipe == "tensorwise"


NANOTRON = NANOTRON_RUN | {
    "framework": "nanotron",
    "gpu": "H100-80GB",
    "model_name": "bench",
    "dp": "16",
    "tokens_per_s_per_gpu": "9000",
}


@pytest.mark.parametrize(
    ("change", "flags"),
    [
        ({}, set()),
        ({"pp": "2", "dp": "8"}, {"unsound", "broken pipeline"}),
        ({"pp": "2", "dp": "8", "framework_version": "after_pp_fix=True"}, set()),
        ({"peak_mem_gib": "68.5"}, {"unsound"}),
        ({"n_gpus": "512", "dp": "512", "global_batch": "1024"}, {"512 GPUs"}),
    ],
)
def test_nanotron_runs_are_unsound_by_the_notes_of_their_file(
    tmp_path: Path, change: dict[str, str], flags: set[str]
) -> None:
    (row,) = nanotron_playbook.rows(write_lines(tmp_path / "nanotron_playbook.csv", [NANOTRON | change]))
    assert row.flags == flags
    assert row.spec is not None
    assert row.problem == f"nanotron|bench|{row.spec.gpus}gpu|b{row.spec.global_batch_size}"


def test_a_nanotron_run_out_of_memory_has_no_speed(tmp_path: Path) -> None:
    lines = [NANOTRON | {"oom": "true", "tokens_per_s_per_gpu": ""}]
    (row,) = nanotron_playbook.rows(write_lines(tmp_path / "nanotron_playbook.csv", lines))
    assert row.left_out == "it ran out of memory"


def test_kernels_of_fms_acceleration_are_read_from_the_name_of_a_configuration(tmp_path: Path) -> None:
    line = FMS_ACCELERATION | {"gpu": "A100-80GB", "zero_stage": "0", "tokens_per_s_per_gpu": "5000"}
    noted = [line, line | {"notes": "framework_config=foak"}, line | {"notes": "framework_config=liger"}]
    found = list(fms_acceleration.rows(write_lines(tmp_path / "fms_acceleration.csv", noted)))
    executions = [row.backend.executes for row in found if row.backend is not None]
    assert [(one.fused_norm, one.fused_loss) for one in executions] == [(False, False), (True, True), (False, True)]
    assert {row.task for row in found} == {"sft"}


def test_a_run_of_bigscience_counts_once_and_as_soft(tmp_path: Path) -> None:
    line = BIGSCIENCE | {
        "gpu": "V100-SXM2-32GB",
        "model_name": "GPT",
        "dp": "1",
        "tokens_per_s_per_gpu": "100",
        "raw_ref": "run.out stage 0",
    }
    path = write_lines(tmp_path / "bigscience_logs.csv", [line, line | {"raw_ref": "run.out stage 1"}])
    first, second = bigscience_logs.rows(path)
    assert (first.left_out, first.soft, first.framework) == (None, True, "Megatron-LM")
    assert second.left_out == "another stage of the same run"
