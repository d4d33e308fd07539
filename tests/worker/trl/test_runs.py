"""TRL's trainers on two CPU ranks: the losses of our own worker, checkpoints that go on, and the launcher's files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.preflight import assess
from launcher.spec.parse import parse
from tests.support import training
from tests.support.helpers import needs

needs("trl", "its runs need the extra 'trl'")

pytestmark = pytest.mark.thorough

LENGTH = 32
SAME = 1e-5  # Relative: torch's operations and TRL's own loss add up in another order.
DECAYING = "optimizer.weight_decay=100"  # So much that it shows in the loss which weights decay.
COMMON = ("train.steps=4", "save.every=2", "save.last=true", "train.micro_batch_size=2", DECAYING)
EVALUATED = ("train.eval_every=2", "train.eval_steps=2")
SMALL_BUCKETS = ("zero.reduce_bucket_size=1000000", "zero.allgather_bucket_size=1000000")
ROWS = [{"prompt": f"{n} + {n}?", "chosen": f" {2 * n}", "rejected": f" {2 * n + 1}, or so"} for n in range(24)]
TRL = (*COMMON, f"train.sequence_length={LENGTH + 1}")
PACKED = ("data=text", "data.column=text", "data.packing=documents", "train.micro_batch_size=1")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("judged") / "judged.jsonl"
    kinds = [
        {"prompt": row["prompt"], "completion": row[key], "label": key == "chosen"}
        for row in ROWS
        for key in ("chosen", "rejected")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in kinds))
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"word{n} " * (1 + n % 4)}) + "\n" for n in range(400)))
    return path


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, rows: Path, judged: Path, texts: Path
) -> tuple[Path, dict[str, list[float]]]:
    """Runs of TRL on FSDP2; the last one goes on from the half of the first."""
    folder = tmp_path_factory.mktemp("trl")
    runs = {
        "sft": ("task=sft", *TRL, *EVALUATED, "save.export=safetensors"),
        "dpo": ("task=dpo", "data=rows", f"data.path={rows}", *TRL),
        "adapter": ("task=dpo", "adapter=lora", "data=rows", f"data.path={rows}", *TRL),
        "precomputed": ("task=dpo", "task.precompute_reference=true", "data=rows", f"data.path={rows}", *TRL),
        "dpo_bf16": ("task=dpo", "precision=bf16", "data=rows", f"data.path={rows}", *TRL),
        "kto_bf16": ("task=kto", "precision=bf16", "data=rows", f"data.path={judged}", *TRL),
        "kto": ("task=kto", "data=rows", f"data.path={judged}", *TRL),
        "packed": ("task=sft", *TRL, *PACKED, f"data.path={texts}"),
        "resumed": ("task=sft", *TRL, *EVALUATED, f"save.load={folder}/sft@2"),
    }
    return folder, training.train_all(folder, runs, ranks=2)


def test_sft_with_everything_unmasked_has_the_losses_of_our_own_worker(
    trained: tuple[Path, dict[str, list[float]]], tmp_path: Path
) -> None:
    own = {"own": ("parallel=ddp", *COMMON, f"train.sequence_length={LENGTH}", *EVALUATED)}
    [expected] = training.train_all(tmp_path, own, ranks=1).values()
    assert trained[1]["sft"] == pytest.approx(expected, rel=SAME)


def test_packed_documents_have_the_losses_of_our_own_worker_and_are_kept_apart(
    trained: tuple[Path, dict[str, list[float]]], tmp_path: Path, texts: Path
) -> None:
    common = ("parallel=ddp", *COMMON, *PACKED, f"train.sequence_length={LENGTH}", f"data.path={texts}")
    own = training.train_all(tmp_path, {"apart": common, "one row": (*common, "data.packing=concat")}, ranks=2)
    assert trained[1]["packed"] == pytest.approx(own["apart"], rel=SAME)
    assert trained[1]["packed"] != pytest.approx(own["one row"], rel=SAME)


def test_parameters_are_sharded_on_cpu_ranks_too(trained: tuple[Path, dict[str, list[float]]]) -> None:
    """accelerate leaves FSDP out on CPUs without a word; ranks would hold the whole model, and twice the memory."""
    memory = json.loads((trained[0] / "sft" / "memory.json").read_text())
    elements = sum(_elements(trained[0] / "sft" / "start" / "model.safetensors"))
    shares = {rank["static_bytes"] for rank in memory["ranks"]}
    assert all(12 * elements / 2 <= share < 12 * elements * 0.6 for share in shares)


def test_the_peak_of_a_run_is_the_predicted_one(trained: tuple[Path, dict[str, list[float]]]) -> None:
    """The tile of the loss is as wide whatever the vocabulary is, and the last block is gathered beside it."""
    folder = trained[0] / "sft"
    memory = json.loads((folder / "memory.json").read_text())
    predicted = assess.estimated(parse(json.loads((folder / "spec.json").read_text())))
    for phase in ("forward", "backward"):
        measured = max(rank["phases"][phase] for rank in memory["ranks"])
        assert predicted.phases[phase] == pytest.approx(measured, rel=0.03), phase


def _elements(path: Path) -> list[int]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118


def test_preferences_begin_where_both_answers_are_as_likely_as_for_the_reference(
    trained: tuple[Path, dict[str, list[float]]],
) -> None:
    for name in ("dpo", "adapter"):
        losses = trained[1][name]
        assert losses[0] == pytest.approx(math.log(2), abs=1e-6)
        assert losses[-1] < losses[0]
    assert trained[1]["precomputed"] == pytest.approx(trained[1]["dpo"], rel=SAME)


@pytest.mark.parametrize("task", ["dpo", "kto"])
def test_half_the_bits_leave_the_losses_of_preferences_whole(
    task: str, trained: tuple[Path, dict[str, list[float]]]
) -> None:
    """accelerate's FSDP2 rounds what a model returns: log-probabilities of whole answers would differ by percents."""
    losses = trained[1][f"{task}_bf16"]
    assert losses == pytest.approx(trained[1][task], rel=1e-2)
    assert [torch.tensor(loss, dtype=torch.bfloat16).item() for loss in losses] != losses


def test_rows_and_what_the_trainer_makes_of_them_are_files_of_the_run_that_all_ranks_map(
    trained: tuple[Path, dict[str, list[float]]],
) -> None:
    """Else every rank has all of them in memory: an arrow table without a file is one in memory."""
    datasets = pytest.importorskip("datasets")
    for name in ("dpo", "adapter"):
        [folder] = (trained[0] / name / "rows").iterdir()
        tables = [datasets.Dataset.from_file(str(path)) for path in folder.glob("cache-*.arrow")]
        assert sum("chosen_ids" in table.column_names for table in tables) == 1, f"{name}: rank 0 makes it for all"


def test_a_run_goes_on_from_a_checkpoint_with_the_samples_and_rates_behind_it(
    trained: tuple[Path, dict[str, list[float]]],
) -> None:
    assert trained[1]["resumed"] == pytest.approx(trained[1]["sft"][2:], rel=SAME)


def test_the_run_directory_has_the_files_of_every_run(trained: tuple[Path, dict[str, list[float]]]) -> None:
    folder = trained[0] / "sft"
    lines: list[dict[str, Any]] = training.lines(folder)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert [("eval_loss" in line) for line in lines] == [False, True, False, True]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-00000002", "step-00000004"]
    assert (folder / "export" / "config.json").is_file()
    assert json.loads((folder / "logs" / "outcome.json").read_text())["state"] == "finished"


def test_every_engine_below_gives_the_same_losses(
    trained: tuple[Path, dict[str, list[float]]], tmp_path: Path, judged: Path
) -> None:
    """DeepSpeed sees both CPU ranks, and ZeRO 3 cuts the weights as they are loaded."""
    runs = {
        "ddp": ("task=sft", "parallel=ddp", *TRL, *EVALUATED),
        "zero2": ("task=sft", "parallel=zero2", *TRL, *SMALL_BUCKETS, *EVALUATED),
        "kto": ("task=kto", "parallel=zero2", "data=rows", f"data.path={judged}", *TRL, *SMALL_BUCKETS),
        "zero3": ("task=sft", "parallel=zero3", *TRL, *SMALL_BUCKETS, *EVALUATED),
    }
    losses = training.train_all(tmp_path, runs, ranks=2)
    for name in ("ddp", "zero2", "zero3"):
        assert losses[name] == pytest.approx(trained[1]["sft"], rel=1e-4), name
    for rank in json.loads((tmp_path / "zero2" / "memory.json").read_text())["ranks"]:
        assert rank["phases"]["optimizer"] > rank["static_bytes"], "a step in accelerate's backward pass is a step"
    assert losses["kto"][0] == pytest.approx(0.5, abs=1e-6)
