"""Quantization-aware training on two CPU ranks: its losses, a run that goes on, steps without rounding, an export."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import training
from tests.support.helpers import needs

needs("torchao", "its runs need the extra 'training'")

pytestmark = pytest.mark.thorough

COMMON = ("train.steps=4", "train.sequence_length=33", "precision.qat_group_size=16", "optimizer.lr=3e-3")
SAVED = ("save.every=2", "save.last=true", "save.export=safetensors")
_FOUR, _UNSAVED = ("train.micro_batch_size=4",), "save.last=false"
RUNS = {
    "fsdp": (*COMMON, *_FOUR, *SAVED, "parallel=fsdp", "precision.qat=int8_int4"),
    "later": (*COMMON, *_FOUR, _UNSAVED, "parallel=ddp", "precision.qat=int4", "precision.qat_after=2"),
    "plain": (*COMMON[:2], COMMON[3], *_FOUR, _UNSAVED, "parallel=ddp"),
    "lora": (*COMMON, *_FOUR, _UNSAVED, "parallel=fsdp", "adapter=lora", "precision.qat=int8_int4_asymmetric"),
}
ALONE = (*COMMON, _UNSAVED, "parallel=ddp", "precision.qat=int8_int4", "train.micro_batch_size=8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[float]]]:
    """The last run goes on from the half of the first."""
    folder = tmp_path_factory.mktemp("rounding")
    on = {"on": (*RUNS["fsdp"], "save.last=false", f"save.load={folder}/fsdp@2")}
    return folder, training.train_all(folder, {**RUNS, **on}, ranks=2)


def test_two_ranks_round_as_one_process_does(trained: tuple[Path, dict[str, list[float]]], tmp_path: Path) -> None:
    [alone] = training.train_all(tmp_path, {"alone": ALONE}, ranks=1).values()
    assert trained[1]["fsdp"] == pytest.approx(alone, rel=2e-3)
    assert alone[-1] < alone[0]


def test_what_is_rounded_trains_to_other_losses(trained: tuple[Path, dict[str, list[float]]]) -> None:
    losses = trained[1]
    assert losses["fsdp"] != pytest.approx(losses["plain"], rel=1e-5)
    assert losses["lora"][-1] < losses["lora"][0]


def test_the_first_steps_of_a_run_that_rounds_later_are_those_of_one_that_does_not(
    trained: tuple[Path, dict[str, list[float]]],
) -> None:
    losses = trained[1]
    assert losses["later"][:2] == losses["plain"][:2]
    assert losses["later"][2] != losses["plain"][2]


def test_a_run_that_goes_on_has_the_losses_of_one_that_was_not_stopped(
    trained: tuple[Path, dict[str, list[float]]],
) -> None:
    assert trained[1]["on"] == pytest.approx(trained[1]["fsdp"][2:], rel=1e-5)


def test_the_export_has_plain_weights_that_transformers_loads(
    trained: tuple[Path, dict[str, list[float]]],
) -> None:
    import transformers

    [folder] = [each.parent for each in (trained[0] / "fsdp").rglob("export*/config.json")]
    made = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert type(made.model.layers[0].mlp.down_proj).__name__ == "Linear"
