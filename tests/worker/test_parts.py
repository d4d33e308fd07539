"""Parts of the worker in one process: schedules, fresh weights, what is exported by whom, metrics."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from launcher.backends.megatron.training import SCHEDULES
from launcher.worker import CheckpointError, TrainingError, memory, metrics
from launcher.worker.engine import Context, StepResult
from launcher.worker.memory.live_bytes import LiveBytes
from launcher.worker.model import export, initial, network, optimizers, weights
from tests.support import decoders
from tests.support.helpers import make_spec, needs

SMALL = ("model=tiny", "model.hidden_size=64", "model.num_hidden_layers=2", "precision=fp32")


def context(directory: Path, *overrides: str) -> Context:
    spec = make_spec(*SMALL, *overrides)
    device = torch.device("cpu")
    return Context(spec=spec, directory=directory, rank=0, world=1, device=device, memory=memory.tracker(device))


def result(loss: float) -> StepResult:
    return StepResult(loss=torch.tensor(loss), grad_norm=torch.tensor(1.0), learning_rate=0.1)


def test_the_rate_rises_then_follows_the_schedule() -> None:
    cosine = replace(make_spec(*SMALL).optimizer, lr=1.0, min_lr=0.2, warmup_steps=4, schedule="cosine")
    rates = [optimizers.learning_rate(cosine, step, 12) for step in range(1, 14)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates[8] == pytest.approx(0.6)
    assert rates[12] == pytest.approx(0.2)
    linear = replace(cosine, schedule="linear", warmup_steps=0, min_lr=0.0)
    assert [optimizers.learning_rate(linear, step, 4) for step in (1, 2, 3, 4)] == pytest.approx([1, 0.75, 0.5, 0.25])
    assert optimizers.learning_rate(replace(linear, schedule="constant"), 4, 4) == 1.0
    falling = replace(linear, schedule="inverse_sqrt", warmup_steps=4)
    rates = [optimizers.learning_rate(falling, step, 100) for step in (5, 17, 65, 102)]
    assert rates == pytest.approx([1, 0.5, 0.25, 0])


def test_warm_up_may_be_a_share_of_the_schedule_rounded_up() -> None:
    ours = replace(make_spec(*SMALL).optimizer, lr=1.0, schedule="constant", warmup_ratio=0.03)
    assert [optimizers.learning_rate(ours, step, 110) for step in (1, 2, 4, 5)] == pytest.approx([0.25, 0.5, 1, 1])
    assert ours.warm_up(1000) == 30
    assert replace(ours, decay_steps=200).warm_up(1000) == 6


@pytest.mark.parametrize("shape", ["exponential", "linear", "cosine", "minus_sqrt"])
@pytest.mark.parametrize("schedule", ["wsd", "inverse_sqrt", "cosine", "linear"])
def test_rates_are_those_of_megatrons_schedules(schedule: Any, shape: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first step has the rate of 0 steps done and is idle; ours has that of its second."""
    module = pytest.importorskip("megatron.core.optimizer_param_scheduler")
    ours = replace(make_spec(*SMALL).optimizer, lr=1.0, min_lr=0.1, schedule=schedule, warmup_steps=5, decay_steps=40)
    ours = replace(ours, wsd_decay=shape, wsd_decay_steps=12)
    monkeypatch.setenv("RANK", "0")  # Megatron-LM logs on rank 0 alone.
    group: dict[str, Any] = {"params": [], "lr": 0.0}
    theirs = module.OptimizerParamScheduler(
        SimpleNamespace(param_groups=[group]), 0.0, 1.0, 0.1, 5, 40, SCHEDULES.get(schedule, schedule),
        0.0, 0.0, 0, "constant", wsd_decay_steps=12, lr_wsd_decay_style=shape,
    )  # fmt: skip
    rates = []
    for _ in range(45):
        theirs.step(1)
        rates.append(group["lr"])
    found = [optimizers.learning_rate(ours, step, 100) for step in range(1, 47)]
    assert found[:5] == pytest.approx(rates[:5])
    assert found[6:] == pytest.approx(rates[5:])  # The full rate is that of our sixth step, too.


@pytest.mark.parametrize("warmup", ["linear", "log"])
@pytest.mark.parametrize(("kind", "schedule"), [("WarmupLR", "constant"), ("WarmupDecayLR", "linear")])
def test_rates_are_those_of_deepspeeds_schedulers(
    kind: str, schedule: Any, warmup: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a step has the rate of the iteration of its number, and each after warm-up that of the one before."""
    settings: dict[str, Any] = {
        "warmup_min_lr": 0.1,
        "warmup_max_lr": 1.0,
        "warmup_num_steps": 5,
        "warmup_type": warmup,
    }
    settings |= {"total_num_steps": 12} if kind == "WarmupDecayLR" else {}
    theirs = _deepspeeds(monkeypatch, kind, settings, 20)
    ours = replace(make_spec(*SMALL).optimizer, lr=1.0, min_lr=0.1, warmup_lr=0.1, warmup=warmup, warmup_steps=5)
    ours = replace(ours, schedule=schedule, decay_steps=12)
    rates = [optimizers.learning_rate(ours, step, 100) for step in range(1, 20)]
    assert rates[:5] == pytest.approx(theirs[1:6])
    assert rates[5:] == pytest.approx(theirs[5:19])


@pytest.mark.parametrize("warmup", ["linear", "log"])
def test_rates_are_those_of_deepspeeds_cosine(warmup: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"total_num_steps": 12, "warmup_min_ratio": 0.2, "cos_min_ratio": 0.25, "warmup_num_steps": 4}
    theirs = _deepspeeds(monkeypatch, "WarmupCosineLR", settings | {"warmup_type": warmup}, 16)
    ours = replace(make_spec(*SMALL).optimizer, lr=1.0, min_lr=0.25, warmup_lr=0.2, warmup=warmup, warmup_steps=4)
    ours = replace(ours, schedule="cosine", decay_steps=12)
    rates = [optimizers.learning_rate(ours, step, 100) for step in range(1, 18)]
    assert rates[:3] == pytest.approx(theirs[1:4])
    assert rates[5:] == pytest.approx(theirs[4:16])  # DeepSpeed leaves the step at the full rate out.


def _deepspeeds(monkeypatch: pytest.MonkeyPatch, kind: str, settings: dict[str, Any], count: int) -> list[float]:
    """The rates of iterations 0, 1, ... of one of DeepSpeed's schedulers."""
    logger = SimpleNamespace(warning=lambda *_: None)
    module = _alone(
        monkeypatch, "deepspeed", "deepspeed/runtime/lr_schedules.py", {"deepspeed.utils": {"logger": logger}}
    )
    group = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = getattr(module, kind)(group, **settings)
    rates = []
    for _ in range(count):
        scheduler.step()
        rates.append(group.param_groups[0]["lr"])
    return rates


def _alone(monkeypatch: pytest.MonkeyPatch, distribution: str, path: str, needs: dict[str, dict[str, object]]) -> Any:
    """A module without the rest of its package, which takes ten seconds to import."""
    for name, content in needs.items():
        monkeypatch.setitem(sys.modules, name.rpartition(".")[0], SimpleNamespace())
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**content))
    file = importlib.metadata.distribution(distribution).locate_file(path)
    source = importlib.util.spec_from_file_location("alone", str(file))
    assert source is not None
    assert source.loader is not None
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    return module


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_rates_are_those_of_megatron(schedule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron-LM counts from 0, so that its warm-up lags by the step that is idle there."""
    needs: dict[str, dict[str, object]] = {"megatron.core.utils": {"log_single_rank": lambda *_: None}}
    module = _alone(monkeypatch, "megatron-core", "megatron/core/optimizer_param_scheduler.py", needs)
    scheduler = module.OptimizerParamScheduler(
        optimizer=SimpleNamespace(param_groups=[]),
        init_lr=0.1,
        max_lr=1.0,
        min_lr=0.2,
        lr_warmup_steps=5,
        lr_decay_steps=12,
        lr_decay_style=schedule,
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
    theirs = []
    for number in range(20):
        scheduler.num_steps = number
        theirs.append(scheduler.get_lr({}))
    ours = replace(make_spec(*SMALL).optimizer, lr=1.0, min_lr=0.2, warmup_lr=0.1, warmup_steps=5)
    ours = replace(ours, schedule=schedule, decay_steps=12)
    rates = [optimizers.learning_rate(ours, step, 100) for step in range(1, 20)]
    assert rates[:5] == pytest.approx(theirs[1:6])
    assert rates[5:] == pytest.approx(theirs[5:19])


def test_norms_and_biases_do_not_decay() -> None:
    spec = make_spec(*SMALL, "optimizer.weight_decay=0.1")
    made = network.network(spec.model, torch.float32)
    matrices, vectors = optimizers.parameter_groups(made, spec)
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert {parameter.dim() for parameter in matrices["params"]} == {2}
    assert {parameter.dim() for parameter in vectors["params"]} == {1}


def filled(seed: int) -> torch.nn.Module:
    made: torch.nn.Module = network.network(make_spec(*SMALL).model, torch.float32).to_empty(device="cpu")
    initial.fill(made, seed)
    return made


@pytest.mark.parametrize("kind", ["mamba2", "gpt_neox"])
def test_values_that_a_class_draws_are_the_same_in_every_process_and_leave_torchs_generator_alone(kind: str) -> None:
    torch.manual_seed(0)
    first, drawn = dict(decoders.fresh(kind).named_parameters()), torch.rand(4)
    second = dict(decoders.fresh(kind).named_parameters())
    assert all(torch.equal(each, second[name]) for name, each in first.items())
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(4))


def test_fresh_weights_follow_from_the_seed_and_have_the_models_deviation() -> None:
    first, again, other = (dict(filled(seed).named_parameters()) for seed in (1, 1, 2))
    assert len(first) > 10
    for name, value in first.items():
        assert torch.equal(value, again[name])
        if "norm" in name:
            assert torch.equal(value, torch.ones_like(value))
        else:
            assert float(value.detach().std()) == pytest.approx(0.02, rel=0.1)
            assert not torch.equal(value, other[name])


@given(rows=st.integers(1, 40), columns=st.integers(1, 9), data=st.data())
def test_any_part_of_a_parameter_is_drawn_as_it_lies_in_the_whole(rows: int, columns: int, data: st.DataObject) -> None:
    def normal(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return values.normal_(generator=generator)

    elements, initial.BLOCK_ELEMENTS = initial.BLOCK_ELEMENTS, 16
    whole = torch.empty(rows, columns)
    initial.draw_into(initial.Local(whole, (rows, columns), (0, 0)), "name", 7, normal)
    start, left = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    part = torch.empty(data.draw(st.integers(0, rows - start)), data.draw(st.integers(1, columns - left)))
    initial.draw_into(initial.Local(part, (rows, columns), (start, left)), "name", 7, normal)
    initial.BLOCK_ELEMENTS = elements
    assert torch.equal(part, whole[start : start + part.shape[0], left : left + part.shape[1]])


def test_weights_of_another_model_are_refused_with_what_differs(tmp_path: Path) -> None:
    network.network(make_spec(*SMALL).model, torch.float32).to_empty(device="cpu").save_pretrained(tmp_path)
    other = make_spec(*SMALL, "model.intermediate_size=32").model
    made = network.network(other, torch.float32).to_empty(device="cpu")
    with pytest.raises(CheckpointError) as caught:
        weights.load(made, tmp_path, 0)
    assert str(caught.value) == (
        f"model.weights={tmp_path} is another model: "
        "model.layers.0.mlp.gate_proj.weight has shape (688, 64) in it and (32, 64) in this run, "
        "model.layers.0.mlp.up_proj.weight has shape (688, 64) in it and (32, 64) in this run, "
        "model.layers.0.mlp.down_proj.weight has shape (64, 688) in it and (64, 32) in this run and 3 more"
    )
    deeper = network.network(make_spec(*SMALL, "model.num_hidden_layers=3").model, torch.float32)
    with pytest.raises(CheckpointError, match=r"lacks 9 tensors of this model: model.layers.2.self_attn.q_proj.weight"):
        weights.load(deeper.to_empty(device="cpu"), tmp_path, 0)


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has neither model.safetensors nor model.safetensors.index.json"):
        weights.load(filled(0), tmp_path, 0)


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=60), ranks=st.integers(1, 8))
def test_no_rank_exports_much_more_than_another(sizes: list[int], ranks: int) -> None:
    named = {f"t{index}": size for index, size in enumerate(sizes)}
    owners = export.shares(named, ranks)
    assert owners.keys() == named.keys()
    loads = [sum(named[name] for name, owner in owners.items() if owner == rank) for rank in range(ranks)]
    assert max(loads) - min(loads) <= max(sizes)


def test_a_resumed_run_leaves_no_later_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(1, 6)) + '{"step": 6, "lo')
    written = metrics.Metrics(context(tmp_path), resumed_at=3)
    written.step(4, result(2.0))
    written.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


def test_a_line_holds_what_readers_rely_on(tmp_path: Path) -> None:
    written = metrics.Metrics(context(tmp_path, "train.log_every=2", "train.steps=5"), resumed_at=0)
    for step in range(1, 6):
        written.step(step, result(2.0), (lambda: {"": torch.tensor(3.0)}) if step == 3 else None)
    written.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 3, 4, 5]
    assert [line.get("eval_loss") for line in lines] == [None, 3.0, None, None]
    keys = {"step", "loss", "grad_norm", "learning_rate", "tokens_per_second", "step_seconds", "time", "memory_bytes"}
    assert all(keys <= set(line) for line in lines)


def test_losses_of_several_sets_have_a_mean_and_perplexities_where_they_are_means_over_tokens(tmp_path: Path) -> None:
    losses = {"code": torch.tensor(1.0), "math": torch.tensor(1000.0)}
    lines = []
    for name, words in {"own": (), "dft": ("task=sft", "parallel=fsdp", "task.loss=dft")}.items():
        (tmp_path / name).mkdir()
        written = metrics.Metrics(context(tmp_path / name, *words), resumed_at=0)
        written.step(1, result(2.0), lambda: losses)
        written.close()
        lines.append(json.loads((tmp_path / name / "metrics.jsonl").read_text()))
    wanted = {"eval_loss": 500.5, "eval_loss/code": 1.0, "eval_loss/math": 1000.0}
    perplexities = {"eval_perplexity": math.exp(500.5), "eval_perplexity/code": math.e, "eval_perplexity/math": None}
    assert [{key: line[key] for key in line if "eval" in key} for line in lines] == [wanted | perplexities, wanted]


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    written = metrics.Metrics(context(tmp_path), resumed_at=0)
    with pytest.raises(
        TrainingError, match=r"the loss of step 1 is nan: training has diverged; try a lower optimizer.lr"
    ):
        written.step(1, result(float("nan")))
    written.close()


def test_a_missing_tracker_names_the_extra(tmp_path: Path) -> None:
    needs("torch")
    with pytest.raises(TrainingError) as caught:
        metrics.Metrics(context(tmp_path, "tracking=mlflow"), resumed_at=0)
    assert str(caught.value) == (
        "tracking=mlflow needs a package that is not installed: "
        f"{sys.executable} -m pip install 'llm-launch[tracking]', or tracking=none"
    )


def test_live_bytes_follow_tensors_until_they_are_freed() -> None:
    live = LiveBytes()
    before = torch.zeros(100)
    live.follow([before])
    with live:
        kept = before + 1
        gone = kept * 2
        view = kept.view(10, 10)
        del gone
        first, live.peak = live.peak, live.bytes
        kept.untyped_storage().resize_(0)
        kept.untyped_storage().resize_(400)
    assert live.bytes == 800
    assert (first, live.peak) == (1200, 800)
    del kept, view
    assert live.bytes == 400
