"""Optimizers of torch, torchao and bitsandbytes on shards: losses, states and checkpoints of real runs on the CPU."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from launcher.spec.parse import parse
from launcher.worker.model import shards
from tests.support import training
from tests.support.adapters import first_rank
from tests.support.helpers import make_spec, needs

needs("bitsandbytes", "lion and paged_adamw_8bit need the extra 'fsdp'")
needs("torchao", "adamw_8bit needs the extra 'fsdp'")

NOISE = {"adafactor": 1e-5, "lion": 1e-4, "muon": 1e-4, "adamw_8bit": 1e-4, "paged_adamw_8bit": 1e-4}
NOISE |= {"adamw_4bit": 1e-3, "rounded": 3e-3}
"""Relative, over four steps. Lion steps by signs, Muon multiplies in bf16, 8-bit states round in blocks of a shard.

Parameters in bf16 that are ``rounded`` by chance are so by other draws where they are in shards.
"""
WORDS = {"rounded": ("optimizer=adamw_8bit", "optimizer.stochastic_rounding=true", "precision.parameters=bf16")}

STEPS, SAVED = 4, 2
SHARDED = ("fsdp", "fsdp_tp")
RATE = {"lion": "optimizer.lr=1e-3", "adafactor": "optimizer.lr=3e-2"}


def overrides(name: str, preset: str) -> tuple[str, ...]:
    rate = RATE.get(name, "optimizer.lr=3e-3")
    size, saved = ("model.hidden_size=128", "model.head_dim=32"), (f"save.every={SAVED}", "save.keep=3")
    batch = "train.micro_batch_size=8" if preset == "fsdp_tp" else "train.micro_batch_size=4"
    words = WORDS.get(name, (f"optimizer={name}",))
    return (f"train.steps={STEPS}", rate, *size, *saved, batch, *words, f"parallel={preset}")


@dataclass(frozen=True)
class Runs:
    folder: Path
    losses: dict[str, list[float]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """One process with whole parameters, which is the library's own optimizer."""
    wanted = {name: overrides(name, "ddp") for name in (*NOISE, "adamw")}
    return training.train_all(tmp_path_factory.mktemp("alone"), wanted, ranks=1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Two ranks with shards of FSDP2, and with tensor parallel parts."""
    folder = tmp_path_factory.mktemp("shared")
    wanted = {f"{name}-{preset}": overrides(name, preset) for name in NOISE for preset in SHARDED}
    return Runs(folder, training.train_all(folder, wanted, ranks=2))


@pytest.mark.parametrize("name", ["adamw_8bit", "adamw_4bit"])
def test_bf16_parameters_move_by_chance_where_a_step_is_less_than_half_of_their_last_bit(name: str) -> None:
    words = (f"optimizer={name}", "precision.parameters=bf16", "optimizer.lr=1e-4", "parallel=fsdp")
    moved = {}
    for rounding in ("false", "true"):
        spec = make_spec("model=tiny", *words, f"optimizer.stochastic_rounding={rounding}")
        parameter = torch.nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
        parameter.grad = torch.ones_like(parameter)
        shards.optimizer(spec, [{"params": [parameter], "weight_decay": 0.0}]).step()
        moved[rounding] = (parameter != 1).float().mean().item()
    assert moved["false"] == 0
    assert 0 < moved["true"] < 0.1  # A step is 1e-4 of 1, whose next value down is 0.0039 away: 2.6%.


@pytest.mark.parametrize("name", ["adamw_8bit", "adamw_4bit"])
def test_shards_of_bf16_parameters_move_as_whole_ones_do(name: str) -> None:
    spec = make_spec("model=tiny", f"optimizer={name}", "precision.parameters=bf16", "optimizer.lr=1e-2")
    mesh = DeviceMesh("cpu", torch.arange(1), _init_backend=False, _rank=0)
    whole = torch.nn.Parameter(torch.linspace(-1, 1, 64 * 64, dtype=torch.bfloat16).view(64, 64))
    local = whole.detach().clone()
    for parameter in (whole, torch.nn.Parameter(DTensor.from_local(local, mesh, [Shard(0)], run_check=False))):
        parameter.grad = parameter.detach().sin()
        stepped = shards.optimizer(spec, [{"params": [parameter], "weight_decay": 0.0}])
        for _ in range(3):
            stepped.step()
    assert torch.equal(local, whole)


@pytest.mark.parametrize("name", NOISE)
def test_two_ranks_lose_what_the_librarys_optimizer_does_in_one_process(
    name: str, alone: dict[str, list[float]], shared: Runs
) -> None:
    assert alone[name][-1] < alone[name][0]
    assert (name != "lion" and name != "muon" and name != "adafactor") or alone[name] != alone["adamw"]
    for preset in SHARDED:
        assert shared.losses[f"{name}-{preset}"] == pytest.approx(alone[name], rel=NOISE[name])


@pytest.mark.parametrize(("name", "noise"), [("adamw_8bit", 1e-3), ("paged_adamw_8bit", 1e-3), ("adamw_4bit", 1e-2)])
def test_states_of_few_bits_lose_nearly_what_those_of_32_bits_do(
    name: str, noise: float, alone: dict[str, list[float]]
) -> None:
    assert alone[name] == pytest.approx(alone["adamw"], rel=noise)
    assert alone[name] != alone["adamw"]


@pytest.mark.parametrize("preset", SHARDED)
@pytest.mark.parametrize("name", NOISE)
def test_between_steps_a_rank_holds_the_states_that_are_predicted(name: str, preset: str, shared: Runs) -> None:
    run = shared.folder / f"{name}-{preset}"
    predicted = first_rank(parse(json.loads((run / "spec.json").read_text()))).allocated("idle")
    measured = json.loads((run / "memory.json").read_text())["ranks"][0]["static_bytes"]
    assert predicted == pytest.approx(measured, rel=0.02)


def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_not_stopped(shared: Runs, tmp_path: Path) -> None:
    for name in NOISE:
        shutil.copytree(shared.folder / f"{name}-fsdp", tmp_path / name)
    found = training.train_all(tmp_path, {name: overrides(name, "fsdp") for name in NOISE}, ranks=2)
    for name, losses in found.items():
        assert losses == pytest.approx(shared.losses[f"{name}-fsdp"], rel=1e-6), name


def test_one_rank_goes_on_from_two_where_states_do_not_depend_on_the_shards(shared: Runs, tmp_path: Path) -> None:
    movable = ("adafactor", "lion", "muon")
    for name in movable:
        shutil.copytree(shared.folder / f"{name}-fsdp", tmp_path / name)
    found = training.train_all(tmp_path, {name: overrides(name, "ddp") for name in movable}, ranks=1)
    for name, losses in found.items():
        assert losses == pytest.approx(shared.losses[f"{name}-fsdp"], rel=NOISE[name]), name
