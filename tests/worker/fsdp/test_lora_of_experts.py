"""LoRA on the weights of all experts of a layer: the losses of plain peft, resumed, exported, beside packed weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from launcher.spec.parse import parse
from launcher.worker.data.corpus import Synthetic, split
from launcher.worker.data.order import Order
from launcher.worker.model import initial, network
from tests.support import training
from tests.support.checkpoints import held_out_loss
from tests.support.helpers import make_spec, needs

needs("peft")
pytestmark = pytest.mark.thorough
STEPS, SAVED = 4, 2
LORA = (
    *("adapter.rank=4", "adapter.targets=[q_proj,v_proj]", "checkpointing=full", f"train.steps={STEPS}"),
    *(
        "adapter.parameters=[experts.gate_up_proj,experts.down_proj]",
        "optimizer.lr=1e-2",
        "model.moe_intermediate_size=64",
    ),
    *(f"train.eval_every={SAVED}", "train.eval_steps=2", f"save.every={SAVED}", "save.keep=3", "save.last=true"),
)
RUNS = {
    "fsdp": ("parallel=fsdp", "adapter=lora", "save.export=safetensors"),
    "ddp": ("parallel=ddp", "adapter=lora"),
    "qlora": ("parallel=fsdp", "adapter=qlora", "save.export=safetensors"),
    "int8": ("parallel=ddp", "adapter=qlora", "adapter.quant_type=int8"),
}


@dataclass(frozen=True)
class Runs:
    folder: Path
    losses: dict[str, list[float]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    wanted = {name: (*training.MOE, *LORA, *more) for name, more in RUNS.items()}
    return Runs(folder, training.train_all(folder, wanted, ranks=2))


def _fresh() -> Any:
    spec = make_spec(*training.SMALL, *training.MOE, *LORA, "adapter=lora", "parallel=ddp")
    base = network.network(spec.model, torch.float32).to_empty(device="cpu")
    initial.fill(base, spec.train.seed)
    return base


def _by_peft(directory: Path) -> list[float]:
    """The losses of a run's samples in one process, by peft's own module and torch's own optimizer."""
    import peft

    spec = parse(json.loads((directory / "spec.json").read_text()))
    model = _fresh()
    adapter = {"r": spec.adapter.rank, "lora_alpha": spec.adapter.alpha, "target_modules": ["q_proj", "v_proj"]}
    peft.inject_adapter_in_model(
        peft.LoraConfig(**adapter, target_parameters=["experts.gate_up_proj", "experts.down_proj"]), model
    )
    initial.fill(model, spec.train.seed)  # The same names, so that the matrices begin as in the run.
    trained = [
        value for name, value in model.named_parameters() if value.requires_grad_(".lora_" in name).requires_grad
    ]
    optimizer = torch.optim.AdamW(
        trained, betas=(spec.optimizer.beta1, spec.optimizer.beta2), eps=spec.optimizer.epsilon
    )
    part, _ = split(Synthetic(spec.model.vocab_size, spec.sequence_length, spec.train.seed), spec.data.eval_fraction)
    batch = spec.global_batch_size
    order = Order(
        size=part.size, seed=spec.train.seed, shuffle=spec.data.shuffle,
        global_batch_size=batch, micro_batch_size=batch, data_rank=0, data_ranks=1,
    )  # fmt: skip
    found = []
    for line in (line for line in training.lines(directory) if "loss" in line):
        rows = torch.stack([torch.from_numpy(part.sample(index)) for index in order.samples(line["step"])[0]])
        logits = model(input_ids=rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(trained, spec.optimizer.clip)
        for group in optimizer.param_groups:
            group |= {"lr": line["learning_rate"], "weight_decay": spec.optimizer.weight_decay}
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def test_two_ranks_lose_what_plain_peft_does_in_one_process(runs: Runs) -> None:
    expected = _by_peft(runs.folder / "fsdp")
    assert expected[-1] < expected[0] - 0.05
    for name in ("fsdp", "ddp"):
        assert runs.losses[name] == pytest.approx(expected, rel=1e-5)


def test_beside_packed_experts_all_matrices_learn_and_lose_nearly_the_same(runs: Runs) -> None:
    """peft alone would lose those of one of two weights."""
    for name in ("qlora", "int8"):
        assert runs.losses[name] == pytest.approx(runs.losses["ddp"], rel=2e-3)
    trained = load_file(runs.folder / "qlora" / "export" / "adapter_model.safetensors")
    matrices = [value for name, value in trained.items() if name.endswith(".lora_B.weight")]
    assert len(matrices) == 2 * 4, "two linears and two weights of experts in each layer"
    assert all(value.abs().max() > 0 for value in matrices)


def test_a_run_goes_on_from_its_checkpoint(runs: Runs, tmp_path: Path) -> None:
    wanted = {}
    for name in ("fsdp", "qlora"):
        shutil.copytree(runs.folder / name, tmp_path / name)
        shutil.rmtree(tmp_path / name / "checkpoints" / f"step-{STEPS:08d}")
        wanted[name] = (*training.MOE, *LORA, *RUNS[name], "parallel=ddp")
    for name, losses in training.train_all(tmp_path, wanted, ranks=1).items():
        assert losses == pytest.approx(runs.losses[name], rel=1e-5)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft 0.21.2 reads it.
def test_the_export_computes_in_peft_what_the_worker_did(runs: Runs) -> None:
    import peft

    model = peft.PeftModel.from_pretrained(_fresh(), runs.folder / "fsdp" / "export")
    evaluation = training.lines(runs.folder / "fsdp")[-1]["eval_loss"]
    assert held_out_loss(model, runs.folder / "fsdp") == pytest.approx(evaluation, rel=1e-5)
