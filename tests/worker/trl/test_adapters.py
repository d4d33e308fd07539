"""OFT and PiSSA under TRL on two CPU ranks: where they begin, what they hold, runs that go on, and what is exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from launcher.preflight import assess
from launcher.spec.parse import parse
from tests.support import training
from tests.support.helpers import needs

needs("trl", "its runs need the extra 'trl'")

pytestmark = pytest.mark.thorough

COMMON = ("task=sft", "parallel=ddp", "train.steps=4", "train.micro_batch_size=2", "train.sequence_length=33")
SAVED = ("save.every=2", "save.last=true", "save.export=safetensors")
WIDE = ("model.hidden_size=512", "model.intermediate_size=1376", "model.num_attention_heads=8")
OFT = (*COMMON, "adapter=oft")
QOFT = (*COMMON, "adapter=qoft", "precision=bf16")
PISSA = (*COMMON, "adapter=lora", "adapter.rank=4", "adapter.alpha=4", "adapter.pissa=4")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[float]]]:
    """The first run's memory is its own; the last two go on from the half of the first two."""
    folder = tmp_path_factory.mktemp("adapters")
    runs = {
        "oft": (*OFT, *SAVED),
        "pissa": (*PISSA, *SAVED),
        "qoft": (*QOFT, *SAVED),
        "qlora": (*QOFT, "adapter=qlora", *SAVED),
        "lora": (*COMMON, "adapter=lora", "save.last=false"),
        "oft on": (*OFT, "save.last=false", f"save.load={folder}/oft@2"),
        "qlora on": (*QOFT, "adapter=qlora", "save.last=false", f"save.load={folder}/qlora@2"),
        "qoft on": (*QOFT, "save.last=false", f"save.load={folder}/qoft@2"),
        "pissa on": (*PISSA, "save.last=false", f"save.load={folder}/pissa@2"),
    }
    return folder, training.train_all(folder, runs, ranks=2)


def test_both_begin_as_the_model_is_and_learn(trained: tuple[Path, dict[str, list[float]]]) -> None:
    losses = trained[1]
    for name, other in (("oft", "lora"), ("pissa", "lora"), ("qoft", "qlora")):
        assert losses[name][0] == pytest.approx(losses[other][0], rel=1e-5), name
        assert losses[name][-1] < losses[name][0]
        assert losses[name][1:] != pytest.approx(losses[other][1:], rel=1e-4), name


def test_a_run_that_goes_on_has_the_losses_of_one_that_was_not_stopped(
    trained: tuple[Path, dict[str, list[float]]],
) -> None:
    """PiSSA takes its start off the base again, which is in no checkpoint; a 16-bit adapter is not loaded in fp32."""
    for name in ("oft", "pissa", "qoft", "qlora"):
        assert trained[1][f"{name} on"] == pytest.approx(trained[1][name][2:], rel=1e-6), name


def test_the_memory_of_rotations_is_the_predicted_one(trained: tuple[Path, dict[str, list[float]]]) -> None:
    """Also of what autograd keeps of the rotations, which here is more than what it keeps of the tokens."""
    memory = json.loads((trained[0] / "oft" / "memory.json").read_text())
    predicted = assess.estimated(parse(json.loads((trained[0] / "oft" / "spec.json").read_text())))
    for phase in ("forward", "backward"):
        measured = max(rank["phases"][phase] for rank in memory["ranks"])
        assert predicted.phases[phase] == pytest.approx(measured, rel=0.03), phase
    static = max(rank["static_bytes"] for rank in memory["ranks"])
    assert predicted.static_bytes == pytest.approx(static, rel=0.02)


ZERO3 = ("parallel=zero3", "precision=bf16", "zero.reduce_bucket_size=1000000")
QLORA = ("adapter=qlora", "adapter.quant_type=int8", "parallel=ddp", "precision=bf16", "train.sequence_length=128")


@pytest.mark.parametrize(
    ("words", "left_out", "error"),
    [
        (("adapter=lora", "parallel=ddp", "precision=bf16"), (), 0.02),
        (("adapter=lora", "parallel=fsdp"), (), 0.02),
        (QLORA, (), 0.03),
        ((*QLORA, "adapter=qoft"), (), 0.03),
        ((*QLORA, "adapter=qoft", "adapter.quant_type=nf4", "model.intermediate_size=1344"), ("load",), 0.025),
        (("task=dpo", "data=rows", "parallel=fsdp"), (), 0.02),  # Model and reference are sharded one after the other.
        (("parallel=zero1",), (), 0.02),
        (("task=dpo", "data=rows", *ZERO3), (), 0.02),  # Each of two engines keeps its weights of few elements.
        (("task=kto", "data=rows", *ZERO3), (), 0.02),  # Called twice a step, ZeRO 3 has no trace to keep others by.
        (("task=dpo", "data=rows", "adapter=lora", *ZERO3), ("load", "checkpoint_save"), 0.03),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_the_memory_is_the_predicted_one_in_every_phase(
    words: tuple[str, ...], left_out: tuple[str, ...], error: float, tmp_path: Path
) -> None:
    """In 16 bits each linear has a copy of its input for an fp32 adapter; beside 8-bit weights TRL makes that bf16.

    Measured on rank 1, as rank 0 alone writes the start of the run.
    """
    words = (*COMMON, *WIDE, "train.micro_batch_size=4", "train.steps=2", "save.last=true", *words)
    if "data=rows" in words:
        row: dict[str, object] = {"prompt": "a", "chosen": "yes " * 20, "rejected": "no " * 30}
        if "task=kto" in words:
            row = {"prompt": "a", "completion": row["chosen"], "label": True}
        (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 40)
        words = (*words, f"data.path={tmp_path}/rows.jsonl")
    training.train_all(tmp_path, {"run": words}, ranks=2)
    memory = json.loads((tmp_path / "run" / "memory.json").read_text())["ranks"][1]
    predicted = assess.estimated(parse(json.loads((tmp_path / "run" / "spec.json").read_text())))
    assert predicted.static_bytes == pytest.approx(memory["static_bytes"], rel=0.02)
    for phase, size in predicted.phases.items():
        if phase not in left_out:
            assert size == pytest.approx(memory["phases"][phase], rel=error), phase


def test_an_adapter_that_began_as_pissa_is_exported_as_lora_beside_the_weights_as_they_were(
    trained: tuple[Path, dict[str, list[float]]],
) -> None:
    """Twice the rank, ``B A - B0 A0``: a small change of the weights, where PiSSA's own product is most of them."""
    from safetensors.torch import load_file

    folder = trained[0] / "pissa"
    [exported] = folder.rglob("export*/adapter_model.safetensors")
    assert json.loads(exported.with_name("adapter_config.json").read_text())["r"] == 8
    tensors, first = load_file(exported), load_file(folder / "pissa" / "adapter_model.safetensors")
    for name in [name for name in tensors if name.endswith("lora_A.weight")]:
        other = name.replace("lora_A", "lora_B")
        change = torch.linalg.norm(tensors[other] @ tensors[name])
        assert 0 < change < 0.3 * torch.linalg.norm(first[other] @ first[name]), name
