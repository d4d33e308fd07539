"""LoRA's variants and cuts in real runs on the CPU: the same losses on one rank and two, resumed, exported for peft."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import training
from tests.support.checkpoints import held_out_loss

STEPS, SAVED = 4, 2
EVALUATED = (f"train.eval_every={SAVED}", "train.eval_steps=2")
LORA = ("adapter=lora", "adapter.rank=4", f"train.steps={STEPS}", *EVALUATED)
SAVING = (f"save.every={SAVED}", "save.keep=3", "save.last=true", "save.export=safetensors")
VARIANTS = {
    "lora": (),
    "dora": ("adapter.dora=true",),
    "rslora": ("adapter.rslora=true",),
    "plus": ("adapter.lora_plus=8",),
    "tables": ("adapter.modules_to_save=[embed_tokens,lm_head]",),
    "all": ("adapter.dora=true", "adapter.lora_plus=8", "adapter.modules_to_save=[lm_head]"),
}
TP = ("parallel=fsdp_tp", "parallel.tensor=2")
ON_TWO = {
    "lora_tp": (*TP, "parallel.sequence=false"),
    "lora_tp_sequence": TP,
    "plus_tp": (*TP, *VARIANTS["plus"]),
    "tables_tp": (*TP, *VARIANTS["tables"]),
    "dora_ddp": ("parallel=ddp", *VARIANTS["dora"]),
    "all_fsdp": ("parallel=fsdp", *VARIANTS["all"], "checkpointing=full"),
}


@dataclass(frozen=True)
class Runs:
    folder: Path
    losses: dict[str, list[float]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    whole = training.train_all(
        folder, {name: (*LORA, "parallel=ddp", *more) for name, more in VARIANTS.items()}, ranks=1
    )
    two = training.train_all(folder, {name: (*LORA, *SAVING, *more) for name, more in ON_TWO.items()}, ranks=2)
    return Runs(folder, whole | two)


@pytest.mark.parametrize("name", ON_TWO)
def test_two_ranks_lose_what_one_does(runs: Runs, name: str) -> None:
    assert runs.losses[name] == pytest.approx(runs.losses[name.partition("_")[0]], rel=1e-5)


def test_each_variant_is_a_training_of_its_own(runs: Runs) -> None:
    for name in VARIANTS.keys() - {"lora"}:
        assert runs.losses[name][0] == pytest.approx(runs.losses["lora"][0], rel=1e-6), "it begins at the same weights"
        assert runs.losses[name][-1] != pytest.approx(runs.losses["lora"][-1], rel=1e-5)


def test_a_run_goes_on_from_its_checkpoint_on_one_rank(runs: Runs, tmp_path: Path) -> None:
    wanted = {}
    for name in ("lora_tp", "all_fsdp"):
        shutil.copytree(runs.folder / name, tmp_path / name)
        shutil.rmtree(tmp_path / name / "checkpoints" / f"step-{STEPS:08d}")
        wanted[name] = (*LORA, *SAVING, "parallel=ddp", *VARIANTS[name.partition("_")[0]])
    for name, losses in training.train_all(tmp_path, wanted, ranks=1).items():
        assert losses == pytest.approx(runs.losses[name], rel=1e-5)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft 0.21.2 reads it.
@pytest.mark.parametrize("name", ["lora_tp", "tables_tp", "all_fsdp"])
def test_the_export_computes_in_peft_what_the_worker_did(runs: Runs, name: str) -> None:
    """The base is fresh, from the seed of the run; its values are those of the worker before the first step."""
    peft, torch = pytest.importorskip("peft"), pytest.importorskip("torch")
    from launcher.worker.model import initial, network
    from tests.support.helpers import make_spec

    spec = make_spec(*training.SMALL, *LORA, "parallel=ddp", *VARIANTS[name.partition("_")[0]])
    base = network.network(spec.model, torch.float32).to_empty(device="cpu")
    initial.fill(base, spec.train.seed)
    model = peft.PeftModel.from_pretrained(base, runs.folder / name / "export")
    evaluation = training.lines(runs.folder / name)[-1]["eval_loss"]
    assert held_out_loss(model, runs.folder / name) == pytest.approx(evaluation, rel=1e-5)
