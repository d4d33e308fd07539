"""Quantization-aware training in mxfp4 on two CPU ranks: as torchao alone trains, going on, memory and export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import cover, training
from tests.support.checkpoints import assert_memory_is_predicted, descent, exported, held_out_loss, spec_of
from tests.support.helpers import needs

needs("torchao", "its runs need the extra 'training'")

pytestmark = pytest.mark.thorough

COMMON = ("train.steps=4", "train.micro_batch_size=4", "precision.qat=mxfp4")
SAVED = ("save.every=2", "save.last=true", "save.export=safetensors", "train.eval_every=4", "train.eval_steps=1")
DESCENT = (
    *("optimizer=sgd", "optimizer.lr=0.1", "optimizer.beta1=0", "optimizer.schedule=constant", "optimizer.clip=0"),
    "optimizer.weight_decay=0",
)
WIDE = (
    *("model.hidden_size=256", "model.intermediate_size=704", "model.num_attention_heads=4"),
    "model.num_hidden_layers=3",
)
FIRST = (*COMMON, *SAVED, "parallel=fsdp")
_BF16 = (*COMMON, *WIDE, "train.steps=2", "parallel=fsdp", "precision=bf16")
MEASURED = {
    "wide": _BF16,
    "recomputed": (*_BF16, "checkpointing=full"),
    "lora": (*_BF16, "adapter=lora"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[float]]]:
    """The later runs start from what the first has saved."""
    folder = tmp_path_factory.mktemp("four-bits")
    begun = training.train_all(folder, {"fsdp": FIRST}, ranks=2)
    weights = f"model.weights={folder}/fsdp/export"
    later = {
        "on": (*FIRST, "save.last=false", "save.export=none", f"save.load={folder}/fsdp@2"),
        **{f"from {layout}": (*COMMON, *DESCENT, f"parallel={layout}", weights) for layout in ("fsdp", "ddp")},
    }
    return folder, begun | training.train_all(folder, later, ranks=2)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    asked = cover.asked(request)
    training.train_all(folder, {name: words for name, words in MEASURED.items() if name in asked}, ranks=2)
    return folder


def prepared(folder: Path) -> Any:
    """The exported model with linears that torchao has made ready, and nothing of the launcher's."""
    from torchao.prototype.qat import MXFakeQuantizeConfig
    from torchao.quantization import quantize_
    from torchao.quantization.qat import QATConfig

    made, both = exported(folder), MXFakeQuantizeConfig(torch.float4_e2m1fn_x2, block_size=32)
    quantize_(made.model, QATConfig(activation_config=both, weight_config=both, step="prepare"))
    return made


@pytest.mark.parametrize("layout", ["fsdp", "ddp"])
def test_two_ranks_lose_what_torchao_alone_does(layout: str, trained: tuple[Path, dict[str, list[float]]]) -> None:
    folder, losses = trained
    lost = descent(prepared(folder / "fsdp" / "export"), spec_of(folder / f"from {layout}"))
    assert losses[f"from {layout}"] == pytest.approx(lost, rel=1e-4)
    assert lost[-1] < lost[0]


def test_a_run_that_goes_on_has_the_losses_of_one_that_was_not_stopped(
    trained: tuple[Path, dict[str, list[float]]],
) -> None:
    assert trained[1]["on"] == pytest.approx(trained[1]["fsdp"][2:], rel=1e-4)


def test_the_export_has_plain_weights_with_which_torchao_computes_what_the_worker_did(
    trained: tuple[Path, dict[str, list[float]]],
) -> None:
    folder = trained[0] / "fsdp"
    evaluation = training.lines(folder)[-1]["eval_loss"]
    assert held_out_loss(prepared(folder / "export"), folder) == pytest.approx(evaluation, rel=1e-4)
    assert held_out_loss(exported(folder / "export"), folder) != pytest.approx(evaluation, rel=3e-4)


@pytest.mark.parametrize("name", MEASURED)
def test_the_memory_is_the_predicted_one(name: str, measured: Path) -> None:
    assert_memory_is_predicted(measured / name)
