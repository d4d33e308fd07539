"""The formulas against the trace of the workers' own code: families, frameworks, precisions, checkpointing, degrees."""

from __future__ import annotations

import pytest

from launcher import preflight
from launcher.memory import MemoryEstimate
from launcher.spec import RunSpec
from launcher.trace import document
from tests.helpers import make_spec

pytest.importorskip("torch", reason="the trace needs the extra 'fsdp'")

from launcher.worker.trace.adapt import adapted
from launcher.worker.trace.one_depth import record

_SHAPE = (
    "model.num_hidden_layers=4",
    "model.hidden_size=512",
    "model.num_attention_heads=8",
    "model.vocab_size=4100",
    "model.max_position_embeddings=1024",
    "train.sequence_length=512",
    "train.micro_batch_size=2",
    "hardware=h100_80g",
)
_GATED = ("model.intermediate_size=1376", "model.num_key_value_heads=4")
_FAMILIES = {
    "llama": ("model=tiny", *_GATED),
    "gpt": ("model=gpt2", "model.intermediate_size=2048", "model.num_key_value_heads=8"),
    "moe": (
        *("model=mixtral_8x7b", "model.num_experts=4", "model.moe_intermediate_size=1376", "model.head_dim=64"),
        *_GATED,
    ),
}
_FRAMEWORKS = {
    "ddp": ("parallel=ddp",),
    "fsdp": ("parallel=fsdp",),
    "hsdp": ("parallel=hsdp",),
    "tp": ("parallel=fsdp", "parallel.tensor=2"),
    "tp+sp": ("parallel=fsdp", "parallel.tensor=2", "parallel.sequence=true"),
    "zero0": ("parallel=ddp", "backend=deepspeed", "zero=0"),
    "zero1": ("parallel=zero1", "zero.reduce_bucket_size=1000000"),
    "zero2": ("parallel=zero2", "zero.reduce_bucket_size=1000000"),
    "zero3": ("parallel=zero3", "zero.reduce_bucket_size=1000000"),
}
_BOUND = 0.02

_AGREE = (
    *(f"llama/{framework}/bf16/{mode}/4" for framework in ("ddp", "fsdp", "hsdp") for mode in ("none", "full")),
    *(f"llama/{framework}/fp32/none/4" for framework in ("ddp", "fsdp", "hsdp")),
    *(f"gpt/{framework}/bf16/{mode}/4" for framework in ("ddp", "fsdp", "hsdp") for mode in ("none", "full")),
    *(f"gpt/{framework}/fp32/none/4" for framework in ("ddp", "fsdp", "hsdp")),
    *(f"llama/{framework}/bf16/{mode}/4" for framework in ("tp", "tp+sp") for mode in ("none", "full")),
    "llama/ddp/bf16/selective/4",
    "llama/fsdp/bf16/none/2",
    "llama/fsdp/bf16/none/64",
    "llama/fsdp/bf16/none/4/train.global_batch_size=24",
    "llama/fsdp/bf16/none/4/train.loss=chunked",
    "llama/fsdp/bf16/none/4/optimizer.foreach=true",
    "llama/fsdp/bf16/none/4/model.attention=eager",
    "llama/fsdp/bf16/none/4/adapter=lora",
    "moe/ddp/fp32/none/4",
)
"""Family / framework / precision / checkpointing / ranks / more overrides."""

_AGREE_DEEPSPEED = (
    *(f"llama/zero0/{cell}/4" for cell in ("bf16/none", "bf16/full", "fp32/none")),
    *(f"llama/{framework}/bf16/{mode}/4" for framework in ("zero1", "zero2", "zero3") for mode in ("none", "full")),
    "llama/zero2/fp32/none/4",
)


def _spec(cell: str) -> RunSpec:
    family, framework, precision, mode, ranks, *more = cell.split("/")
    places = (f"precision={precision}", f"checkpointing={mode}", f"cluster.gpus_per_node={ranks}")
    spec = make_spec(*_FAMILIES[family], *_SHAPE, *_FRAMEWORKS[framework], *places, *more)
    assert not preflight.errors(spec)
    return spec


def _allocated(estimate: MemoryEstimate) -> int:
    """The formula's peak of a step, without the libraries' workspaces, which fake tensors do not have."""
    workspace = sum(pile.bytes for pile in estimate.piles if pile.pile == "workspace")
    return max(estimate.phases[phase] for phase in ("forward", "backward", "optimizer")) - workspace


@pytest.mark.parametrize("cell", _AGREE)
def test_formula_and_trace_agree_within_two_percent_on_what_is_allocated(cell: str) -> None:
    spec = _spec(cell)
    peaks = record(adapted(spec, spec.model.num_hidden_layers), 0).peaks(2)
    assert set(peaks) == {"forward", "backward", "optimizer"}
    traced = max(moment.bytes for moment in peaks.values())
    assert _allocated(preflight.estimated(spec)) == pytest.approx(traced, rel=_BOUND)


@pytest.mark.parametrize("cell", _AGREE_DEEPSPEED)
def test_formula_and_trace_of_deepspeed_agree_within_two_percent_on_what_is_allocated(cell: str) -> None:
    pytest.importorskip("deepspeed", reason="the trace of these needs the extra 'deepspeed'")
    spec = _spec(cell)
    phases = document(spec)["phases"]
    traced = max(phases[phase] for phase in ("forward", "backward", "optimizer"))
    assert _allocated(preflight.estimated(spec)) == pytest.approx(traced, rel=_BOUND)
