from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.worker import CheckpointError
from launcher.worker.deepspeed.checkpoint import readable

SAVED = {
    "stage": 2,
    "ranks": 2,
    "tensor": 1,
    "pipeline": 1,
    "precision": "bf16",
    "nvme": False,
    "adapter": "none",
    "optimizer": "adamw",
}
OTHERWISE = ", or export there (save.export=safetensors) and start here with model.weights"


@pytest.mark.parametrize(
    "changes",
    [{}, {"ranks": 4}, {"stage": 1}, {"stage": 1, "ranks": 1}, {"tensor": 2}],
    ids=["same", "ranks", "stage", "both", "tensor"],
)
def test_other_ranks_and_the_neighbouring_stage_can_go_on(changes: dict[str, Any]) -> None:
    readable(SAVED, SAVED | changes, Path("step"))


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (
            {"stage": 3},
            {"stage": 1},
            "step was written with ZeRO 3 and this run has ZeRO 1: DeepSpeed converts between ZeRO 1 and 2 alone; "
            "set zero=3",
        ),
        (
            {"stage": 0},
            {"stage": 2},
            "step was written with ZeRO 0 and this run has ZeRO 2: DeepSpeed converts between ZeRO 1 and 2 alone; "
            "set zero=0",
        ),
        (
            {"precision": "fp32"},
            {},
            "step was trained in fp32 and this run computes in bf16: set precision=fp32",
        ),
        (
            {"stage": 3, "nvme": True},
            {"stage": 3, "nvme": True},
            "step cannot be resumed: DeepSpeed 0.19.8 restores neither weights nor optimizer states where something is "
            "offloaded to NVMe; train without NVMe",
        ),
        (
            {"stage": 3},
            {"stage": 3, "nvme": True},
            "step cannot be resumed: DeepSpeed 0.19.8 restores neither weights nor optimizer states where something is "
            "offloaded to NVMe; train without NVMe",
        ),
        (
            {"stage": 0},
            {"stage": 0, "tensor": 2},
            "step was written by 2 ranks with ZeRO 0 and parallel.tensor=1, and this run has 2 and parallel.tensor=2: "
            "DeepSpeed changes tensor parallel parts with ZeRO 1 and 2 alone; run on 2 ranks with parallel.tensor=1",
        ),
        (
            {"stage": 3, "ranks": 4, "tensor": 2},
            {"stage": 3, "ranks": 2, "tensor": 2},
            "step was written by 4 ranks with ZeRO 3 and parallel.tensor=2, and this run has 2 and parallel.tensor=2: "
            "DeepSpeed changes tensor parallel parts with ZeRO 1 and 2 alone; run on 4 ranks with parallel.tensor=2",
        ),
        (
            {"pipeline": 2},
            {"ranks": 1},
            "step was written by 2 ranks with parallel.pipeline=2, and this run has 1 with 1: DeepSpeed cannot cut the "
            "stages anew; run on 2 ranks with parallel.pipeline=2",
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
    with pytest.raises(CheckpointError) as caught:
        readable(SAVED | there, SAVED | here, Path("step"))
    assert str(caught.value) == message + OTHERWISE


def test_ranks_without_zero_may_change_freely() -> None:
    """Every rank holds everything there."""
    readable(SAVED | {"stage": 0}, SAVED | {"stage": 0, "ranks": 8, "adapter": "lora"}, Path("step"))


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
