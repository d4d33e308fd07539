"""Pipeline stages of the FSDP worker lose what one process does (fp32, CPU)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from safetensors.torch import load_file

from launcher.preflight.assess import estimated
from launcher.spec.parse import parse
from tests.support import cover, memory_lines, routing
from tests.support.checkpoints import exported, held_out, held_out_loss
from tests.support.helpers import make_spec
from tests.support.training import GPT, MOE, SMALL, lines, train_all

pytestmark = pytest.mark.timeout(1800)  # Seconds; the first test waits for three worlds, on two cores or one.

TOLERANCE = 2e-5
"""Relative, over three steps."""

LARGE = 1.0
"""Between the logits of experts that are chosen and not: ten thousand times what they differ by from rounding."""

STEPS, SAVED = 3, 2
EVALUATED = (f"train.eval_every={STEPS}", "train.eval_steps=2")
LEARNT = ("model.num_hidden_layers=4", f"train.steps={STEPS}", *EVALUATED, "optimizer.clip=0.1")
LLAMA = LEARNT
TIED = (*LEARNT, "model.tie_word_embeddings=true", "model.qk_norm=true")
GPT2 = (*LEARNT, *GPT, "model.num_key_value_heads=4")
MIXTRAL = (*LEARNT, *MOE)
LORA = (*LEARNT, "adapter=lora", "adapter.rank=4")
_MIXER = "ssm_state_size:16,mamba_num_heads:8,mamba_head_dim:16,n_groups:2,chunk_size:8"
HYBRID = (
    *(*LEARNT, *MOE, "model.family=transformers", "model.model_type=nemotron_h", "model.position_embedding=none"),
    *("model.hidden_act=squared_relu", "model.head_dim=16", "model.num_shared_experts=0"),
    f"model.extra={{hybrid_override_pattern:'M-*E',moe_shared_expert_intermediate_size:40,{_MIXER}}}",
)
"""A stage with a state space and an MLP, and one with attention and experts."""

DDP = ("parallel=ddp", "parallel.pipeline=2")
FSDP = ("parallel=fsdp_pp",)
INTERLEAVED = ("parallel.schedule=interleaved", "parallel.virtual_pipeline=2")
ZERO_BUBBLE = ("parallel.schedule=zero_bubble", "train.micro_batch_size=2")
ZBV = ("parallel.schedule=zbv", "parallel.virtual_pipeline=2", "train.micro_batch_size=2")
DUALPIPE_V = ("parallel.schedule=dualpipe_v", "parallel.virtual_pipeline=2", "train.micro_batch_size=2")

ONE_RANK = {
    "llama": ("parallel=ddp", *LLAMA),
    "tied": ("parallel=ddp", *TIED),
    "gpt2": ("parallel=ddp", *GPT2),
    "moe": ("parallel=ddp", *MIXTRAL, "save.export=safetensors"),
    "lora": ("parallel=ddp", *LORA),
    "hybrid": ("parallel=ddp", *HYBRID),
}
TWO_RANKS = {
    "llama-1f1b": (*DDP, *LLAMA, "train.micro_batch_size=2"),
    "llama-gpipe": (*FSDP, *LLAMA, "parallel.schedule=gpipe", "train.micro_batch_size=2"),
    "llama-gpipe_one": (*DDP, *LLAMA, "parallel.schedule=gpipe", "train.micro_batch_size=8"),
    "llama-interleaved": (*FSDP, *LLAMA, *INTERLEAVED, "train.micro_batch_size=2", "checkpointing=full"),
    "llama-uneven": (*FSDP, *LLAMA, "parallel.first_stage_layers=1", "parallel.last_stage_layers=3"),
    "llama-chunked": (*DDP, *LLAMA, "train.loss=chunked", "train.loss_chunk=50", "checkpointing=selective"),
    "llama-offloaded": (*FSDP, *LLAMA, "zero.offload_parameters=cpu"),
    "llama-zero_bubble_offloaded": (
        *FSDP,
        *LLAMA,
        *ZERO_BUBBLE,
        "parallel.virtual_pipeline=2",
        "zero.offload_parameters=cpu",
    ),
    "llama-zbv": (*DDP, *LLAMA, *ZBV, "train.micro_batch_size=1"),
    "tied-zbv": (*FSDP, *TIED, *ZBV, "save.export=safetensors"),
    "gpt2-dualpipe_v": (*FSDP, *GPT2, *DUALPIPE_V),
    "moe-zero_bubble": (*DDP, *MIXTRAL, *ZERO_BUBBLE),
    "lora-zbv": (*FSDP, *LORA, *ZBV),
    "tied-1f1b": (*DDP, *TIED, "save.export=safetensors"),
    "gpt2-1f1b": (*FSDP, *GPT2),
    "gpt2-interleaved": (*DDP, *GPT2, *INTERLEAVED),
    "moe-1f1b": (*DDP, *MIXTRAL),
    "hybrid-1f1b": (*FSDP, *HYBRID),
    "lora-1f1b": (*FSDP, *LORA, "save.export=safetensors"),
}
FOUR_RANKS = {
    "llama-fsdp": (*FSDP, *LLAMA, "train.micro_batch_size=1", f"save.every={SAVED}", "save.export=safetensors"),
    "llama-zero2": (*FSDP, *LLAMA, *INTERLEAVED, "zero=2", "train.micro_batch_size=2"),
    "llama-unsynchronised": (*FSDP, *LLAMA, "backend.micro_step_sync=false", "train.micro_batch_size=1"),
    "llama-ddp": (*DDP, *LLAMA, "train.micro_batch_size=1"),
    "llama-kept_over_two": ("parallel=fsdp", *LLAMA, "backend.reshard_after_forward=2", "train.micro_batch_size=1"),
    "llama-dualpipe_v": (
        *(*FSDP, *LLAMA, *DUALPIPE_V, "train.micro_batch_size=1"),
        *(f"save.every={SAVED}", "save.export=safetensors"),
    ),
    "llama-tensor_zbv": ("parallel=fsdp_tp", "parallel.pipeline=2", *LLAMA, *ZBV),
    "llama-tensor": ("parallel=fsdp_tp", "parallel.pipeline=2", *LLAMA),
    "llama-tensor_replicated": ("parallel=fsdp_tp", "parallel.pipeline=2", *LLAMA, "parallel.sequence=false"),
    "llama-four_stages": (*DDP, "parallel.pipeline=4", *LLAMA, "train.micro_batch_size=1"),
    "tied-fsdp": (*FSDP, *TIED, "train.micro_batch_size=1", f"save.every={SAVED}"),
    "tied-tensor": ("parallel=fsdp_tp", "parallel.pipeline=2", *TIED),
}
RUNS = cover.Runs(
    parts={"two": TWO_RANKS, "four": FOUR_RANKS},
    ranks={"four": 4},
    needed=(
        *("four/llama-fsdp", "four/llama-dualpipe_v", "four/tied-fsdp"),
        *("two/tied-1f1b", "two/tied-zbv", "two/lora-1f1b"),
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module", autouse=True)
def routed(folder: Path) -> None:
    """First weights with which rounding changes no token's experts, which would change all that follows."""
    routing.write(folder / "routed", make_spec(*SMALL, *MIXTRAL, "parallel=ddp", "cluster.gpus_per_node=1"))


def untied(runs: Mapping[str, Sequence[str]], folder: Path) -> dict[str, Sequence[str]]:
    """The same runs, those with experts from the first weights of :func:`routed`."""
    weights = f"model.weights={folder}/routed"
    return {name: (*words, weights) if name.startswith("moe") else words for name, words in runs.items()}


@pytest.fixture(scope="module")
def four(folder: Path, request: pytest.FixtureRequest) -> Mapping[str, list[float]]:
    return train_all(folder / "four", RUNS.of("four", request), ranks=4)


def elsewhere(folder: Path, name: str) -> str:
    return f"save.load={folder}/four/{name}/checkpoints/step-{SAVED:08d}"


@pytest.fixture(scope="module")
def two(folder: Path, four: Mapping[str, list[float]], request: pytest.FixtureRequest) -> Mapping[str, list[float]]:
    """On two ranks, and the checkpoints of two stages of two ranks goes on with other degrees."""
    resumed = {
        "resumed-sharded": ("parallel=fsdp", *LLAMA, elsewhere(folder, "llama-fsdp")),
        "resumed-folded": (*FSDP, *LLAMA, elsewhere(folder, "llama-dualpipe_v")),
        "resumed-into_folded": (*FSDP, *LLAMA, *ZBV, elsewhere(folder, "llama-fsdp")),
        "resumed-tied_into_folded": (*FSDP, *TIED, *ZBV, elsewhere(folder, "tied-fsdp")),
        "resumed-tied": (*DDP, *INTERLEAVED, *TIED, elsewhere(folder, "tied-fsdp")),
        "resumed-weights": (*FSDP, *LLAMA, f"model.weights={folder}/four/llama-fsdp/export"),
    }
    return train_all(folder / "two", {**untied(RUNS.of("two", request), folder), **resumed}, ranks=2)


@pytest.fixture(scope="module")
def one(folder: Path, four: Mapping[str, list[float]]) -> Mapping[str, list[float]]:
    weights = f"model.weights={folder}/four/llama-fsdp/export"
    resumed = {"weights": ("parallel=ddp", *LLAMA, weights)}
    return train_all(folder / "one", {**untied(ONE_RANK, folder), **resumed}, ranks=1)


@pytest.mark.parametrize("run", RUNS.marked("two", "four"))
@pytest.mark.usefixtures("one", "two", "four")
def test_stages_lose_what_one_process_does_also_beside_another_axis(run: str, folder: Path) -> None:
    """Losses and gradient norms of every step, and the evaluation."""
    reference = run.rpartition("/")[2].partition("-")[0]
    found, expected = lines(folder / run), lines(folder / "one" / reference)
    assert len(found) == STEPS
    for key in ("loss", "grad_norm"):
        assert [line[key] for line in found] == pytest.approx([line[key] for line in expected], rel=TOLERANCE), key
    assert found[-1]["eval_loss"] == pytest.approx(expected[-1]["eval_loss"], rel=TOLERANCE)


def test_rounding_cannot_change_the_experts_of_a_token(one: Mapping[str, list[float]], folder: Path) -> None:
    directory = folder / "one" / "moe"
    rows = held_out(directory)[:, :-1]
    model = exported(directory / "export")
    learnt = routing.smallest_gap(model, rows)
    model.load_state_dict(load_file(folder / "routed" / "model.safetensors"))
    assert learnt > LARGE
    assert routing.smallest_gap(model, rows) > LARGE


def test_a_checkpoint_of_stages_goes_on_with_other_degrees(
    one: Mapping[str, list[float]], two: Mapping[str, list[float]]
) -> None:
    assert two["resumed-sharded"] == pytest.approx(one["llama"][SAVED:], rel=TOLERANCE)
    assert two["resumed-folded"] == pytest.approx(one["llama"][SAVED:], rel=TOLERANCE)
    assert two["resumed-into_folded"] == pytest.approx(one["llama"][SAVED:], rel=TOLERANCE)
    assert two["resumed-tied_into_folded"] == pytest.approx(one["tied"][SAVED:], rel=TOLERANCE)
    assert two["resumed-tied"] == pytest.approx(one["tied"][SAVED:], rel=TOLERANCE)


def test_stages_start_from_an_export_of_stages(one: Mapping[str, list[float]], two: Mapping[str, list[float]]) -> None:
    assert one["weights"][0] < one["llama"][-1] < one["llama"][0]
    assert two["resumed-weights"] == pytest.approx(one["weights"], rel=TOLERANCE)


def test_an_export_of_stages_computes_in_transformers_what_they_did(
    folder: Path, two: Mapping[str, list[float]]
) -> None:
    for name in ("four/llama-fsdp", "four/llama-dualpipe_v", "two/tied-1f1b", "two/tied-zbv"):
        directory = folder / name
        evaluation = lines(directory)[-1]["eval_loss"]
        assert held_out_loss(exported(directory / "export"), directory) == pytest.approx(evaluation, rel=1e-5)


def test_an_adapter_of_stages_is_exported_whole(folder: Path, two: Mapping[str, list[float]]) -> None:
    from safetensors import safe_open

    with safe_open(folder / "two" / "lora-1f1b" / "export" / "adapter_model.safetensors", framework="pt") as content:
        found = {name.partition(".layers.")[2].partition(".")[0] for name in content.keys()}  # noqa: SIM118
    assert found == {"0", "1", "2", "3"}


@pytest.mark.parametrize("run", RUNS.marked("two", "four"))
@pytest.mark.usefixtures("two", "four")
def test_each_stage_takes_about_what_is_predicted(run: str, folder: Path) -> None:
    directory = folder / run
    spec = parse(json.loads((directory / "spec.json").read_text()))
    measured = json.loads((directory / "memory.json").read_text())["ranks"]
    memory_lines.whole(directory, ranks=spec.gpus)
    together = spec.gpus // spec.parallel.pipeline
    predicted = estimated(spec).ranks
    assert len(predicted) == spec.parallel.pipeline
    for stage in predicted:
        own = measured[stage.stage * together : (stage.stage + 1) * together]
        assert stage.static_bytes == pytest.approx(max(rank["static_bytes"] for rank in own), rel=0.01)
        assert 0.96 < stage.allocated_bytes / max(rank["peak_allocated_bytes"] for rank in own) < 1.13
