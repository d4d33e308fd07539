from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.deepspeed.checkpoints import reason_against
from launcher.base import machine
from launcher.preflight.assess import estimated
from launcher.spec.parse import parse
from launcher.worker.deepspeed import checkpoint
from tests.support import training

SAVED = {
    "stage": 2,
    "ranks": 2,
    "tensor": 1,
    "pipeline": 1,
    "precision": "bf16",
    "nvme": False,
    "sub_group_size": 1000,
    "adapter": "none",
    "optimizer": "adamw",
}
OTHERWISE = ", or export there (save.export=safetensors) and start here with model.weights"


@pytest.mark.parametrize(("free", "readers"), [(2**20, 1), (8 * 2**20, 2), (2**30, 4)])
def test_a_conversion_reads_as_many_files_at_a_time_as_fit_in_memory(
    free: int, readers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(8):
        (tmp_path / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(bytes(3 * 2**20))
    monkeypatch.setattr(machine, "memory_in_use", lambda: (2**30, 2**30 + free))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert checkpoint._readers(tmp_path) == readers


@pytest.mark.parametrize(
    "changes",
    [{}, {"ranks": 4}, {"stage": 1}, {"stage": 1, "ranks": 1}, {"tensor": 2}],
    ids=["same", "ranks", "stage", "both", "tensor"],
)
def test_other_ranks_and_the_neighbouring_stage_can_go_on(changes: dict[str, Any]) -> None:
    assert reason_against(SAVED, SAVED | changes) is None


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (
            {"stage": 3},
            {"stage": 1},
            "step was written with ZeRO 3 and this run has ZeRO 1: DeepSpeed converts only between ZeRO 1 and 2; "
            "set zero=3",
        ),
        (
            {"stage": 0},
            {"stage": 2},
            "step was written with ZeRO 0 and this run has ZeRO 2: DeepSpeed converts only between ZeRO 1 and 2; "
            "set zero=0",
        ),
        (
            {"precision": "fp32"},
            {},
            "step was trained in fp32 and this run computes in bf16: set precision=fp32",
        ),
        (
            {"stage": 3, "nvme": "optimizer"},
            {"stage": 3, "nvme": "optimizer", "ranks": 4},
            "step was written by 2 ranks with zero.sub_group_size=1000 and offload of optimizer to NVMe, whose files "
            "no others read: run on 2 ranks with zero.sub_group_size=1000",
        ),
        (
            {"stage": 3},
            {"stage": 3, "nvme": "parameters"},
            "step was written with no offload to NVMe and this run has offload of parameters to NVMe, which DeepSpeed "
            "does not convert: keep it",
        ),
        (
            {"stage": 0},
            {"stage": 0, "tensor": 2},
            "step was written by 2 ranks with ZeRO 0 and parallel.tensor=1, and this run has 2 and parallel.tensor=2: "
            "DeepSpeed changes tensor parallel parts only with ZeRO 1 and 2; run on 2 ranks with parallel.tensor=1",
        ),
        (
            {"stage": 3, "ranks": 4, "tensor": 2},
            {"stage": 3, "ranks": 2, "tensor": 2},
            "step was written by 4 ranks with ZeRO 3 and parallel.tensor=2, and this run has 2 and parallel.tensor=2: "
            "DeepSpeed changes tensor parallel parts only with ZeRO 1 and 2; run on 4 ranks with parallel.tensor=2",
        ),
        (
            {"pipeline": 2},
            {"ranks": 1},
            "step was written by 2 ranks with parallel.pipeline=2, and this run has 1 with 1: "
            "DeepSpeed cannot split the stages again; run on 2 ranks with parallel.pipeline=2",
        ),
        (
            {"adapter": "lora"},
            {"adapter": "lora", "ranks": 1},
            "step was written by 2 ranks with ZeRO 2, and DeepSpeed cannot convert the states of an adapter: "
            "run on 2 ranks with zero=2",
        ),
        (
            {"optimizer": "sgd"},
            {"optimizer": "sgd", "ranks": 1},
            "step was written by 2 ranks with ZeRO 2, and DeepSpeed cannot convert the states of sgd: "
            "run on 2 ranks with zero=2",
        ),
    ],
)
def test_what_deepspeed_cannot_convert_is_refused_with_the_way_out(
    there: dict[str, Any], here: dict[str, Any], message: str
) -> None:
    reason = reason_against(SAVED | there, SAVED | here)
    assert reason is not None
    assert f"step {reason[1]}" == message + OTHERWISE


def test_ranks_without_zero_may_change_freely() -> None:
    """Every rank holds everything there."""
    assert reason_against(SAVED | {"stage": 0}, SAVED | {"stage": 0, "ranks": 8, "adapter": "lora"}) is None


def test_a_disk_that_is_full_is_told_from_other_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's zip writer names no errno, so the space that is left decides."""
    from launcher.worker.deepspeed import checkpoint

    class Writer:
        def save(self, state: object, path: str) -> None:
            raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    class Fails:
        def __init__(self) -> None:
            self.checkpoint_engine, self.done = Writer(), False

        def _copy_recovery_script(self, path: str) -> None:
            raise OSError(28, "No space left on device")

        def save_checkpoint(self, *_: Any, **__: Any) -> None:
            self.checkpoint_engine.save({}, "states.pt")
            self._copy_recovery_script("")
            self.done = True

    context: Any = type("Context", (), {"spec": type("Spec", (), {"adapter": type("Adapter", (), {"name": "none"})})})
    with pytest.raises(RuntimeError, match="PytorchStreamWriter"):
        checkpoint.save(context, engine := Fails(), tmp_path)
    assert engine.done, "a rank that cannot write comes to the barriers behind"
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    with pytest.raises(OSError, match="No space left on device"):
        checkpoint.save(context, Fails(), tmp_path)


def test_a_stand_in_for_swapped_states_gets_its_steps_moments_and_small_groups_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two groups the first is on the disk, where DeepSpeed reads it itself; the real thing needs async_io."""
    torch = pytest.importorskip("torch")
    from launcher.worker.deepspeed import checkpoint

    masters = [torch.zeros(0), torch.zeros(2)]
    states: list[dict[str, Any]] = [{}, {}]
    saved = {
        "loss_scaler": "saved",
        "optimizer_state_dict": {
            "state": {0: {"step": 5, "exp_avg": torch.zeros(0)}, 1: {"step": 5, "exp_avg": torch.ones(2)}}
        },
        "fp32_flat_groups": [torch.zeros(0), torch.full((2,), 3.0)],
    }
    called = list[object]()

    class Wrapper:
        dp_process_group = None
        fp32_partitioned_groups_flat, fp16_partitioned_groups_flat_numel = masters, [4, 2]
        optimizer = type("Adam", (), {"state": dict(zip(masters, states, strict=True))})

        def checkpoint_event_prologue(self) -> None:
            called.append("partition")

        def checkpoint_event_epilogue(self) -> None:
            called.append("gather")

        def _swappable_optimizer_subgroup(self, number: int) -> bool:
            return number == 0

        def _prepare_sub_group(self, number: int, timers: set[str]) -> None:
            called.append(("from the disk", len(states[number]["exp_avg"])))

        def _release_sub_group(self, number: int, timers: set[str]) -> None:
            called.append("to the disk")

        def _reassign_or_swap_out_partitioned_parameters(self, number: int) -> None:
            called.append(number)

    class Engine:
        optimizer = Wrapper()

        def _get_all_zero_checkpoints(self, folder: str, tag: str) -> list[Any]:
            return [None, saved]

    monkeypatch.setattr("torch.distributed.get_rank", lambda group: 1)
    checkpoint._restore_swapped(Engine(), Path("step"), "deepspeed")
    assert called == ["partition", ("from the disk", 4), "to the disk", 1, "gather"]
    assert [state["step"] for state in states] == [5, 5]
    assert (masters[1].tolist(), states[1]["exp_avg"].tolist()) == ([3.0, 3.0], [1.0, 1.0])


@pytest.mark.thorough
def test_a_stage_of_the_cpu_is_saved_from_a_copy_of_its_parameters(tmp_path: Path) -> None:
    words = (
        "parallel=zero1",
        "parallel.pipeline=2",
        "zero.reduce_bucket_size=100000",
        "train.steps=2",
        "save.last=true",
    )
    training.train_all(tmp_path, {"run": words}, ranks=2)
    predicted = estimated(parse(json.loads((tmp_path / "run" / "spec.json").read_text())))
    [_, last] = json.loads((tmp_path / "run" / "memory.json").read_text())["ranks"]
    copied = last["phases"]["checkpoint_save"] - last["static_bytes"]
    assert copied == pytest.approx(predicted.phases["checkpoint_save"] - predicted.ranks[1].static_bytes, rel=0.02)
