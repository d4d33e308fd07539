"""What Liger's own functions save (``train.kernels=liger``), with kernels that do nothing in place of Triton's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")
pytest.importorskip("liger_kernel", reason="the kernels are of the extra 'kernels'")

import torch
from liger_kernel.ops import rms_norm, rope, swiglu
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

from launcher import backends
from launcher.estimate import families
from launcher.preflight import findings
from launcher.worker.model import initial, network
from tests.support.helpers import make_spec
from tests.support.training import SMALL

TOKENS = 24
RUN = (*SMALL, "hardware=h100_80g", "cluster.gpus_per_node=8", "train.kernels=liger")


class _Nothing:
    """Stands for a Triton kernel."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *_, **__: None


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rms_norm, swiglu, rope):
        for name in dir(module):
            if name.startswith("_") and "triton.runtime" in type(getattr(module, name)).__module__:
                monkeypatch.setattr(module, name, _Nothing())
    for classes in (modeling_llama, modeling_qwen3):  # Liger puts its own into the module, too, where they would stay.
        for name, value in list(vars(classes).items()):
            monkeypatch.setattr(classes, name, value)


def saved_by_a_block(made: Any, states: torch.Tensor) -> int:
    """Bytes of the storages that autograd keeps of a block, without weights and rotary tables."""
    kept: list[torch.Tensor] = []
    places = torch.arange(TOKENS)[None]
    tables = made.model.rotary_emb(states, places)
    own = {each.untyped_storage().data_ptr() for each in (*made.parameters(), *tables)}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = made.model.layers[0](states, position_embeddings=tables, attention_mask=None, position_ids=places)
    sizes = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in kept}
    weights = {each.shape[::way] for each in made.parameters() for way in (1, -1) if each.dim() == 2}
    casts = {each.untyped_storage().data_ptr() for each in kept if each.shape in weights}
    assert out.shape == states.shape
    return sum(size for place, size in sizes.items() if place not in own | casts)


@pytest.mark.parametrize(
    "words",
    [
        ("parallel=fsdp", "precision=fp32", "model.num_key_value_heads=4"),
        ("parallel=fsdp", "precision=bf16"),
        ("parallel=fsdp", "precision=bf16", "model.qk_norm=true"),
        ("parallel=zero2", "precision=bf16"),
        ("parallel=ddp", "precision=bf16"),
    ],
    ids=" ".join,
)
def test_a_block_saves_what_is_counted(without_kernels: None, words: tuple[str, ...]) -> None:
    spec = make_spec(*RUN, *words)
    assert not findings.errors(spec)
    traits = backends.of(spec).engine(spec)
    held = torch.float32 if traits.autocast else network.DTYPES[spec.precision.compute]
    made = network.network(spec.model, held)
    network.use_kernels(made, spec)
    made.to_empty(device="cpu")
    initial.fill(made, seed=1)
    computing: AbstractContextManager[Any] = torch.autocast("cpu", torch.bfloat16) if traits.autocast else nullcontext()
    states = torch.ones(1, TOKENS, spec.model.hidden_size, dtype=held, requires_grad=True)
    with computing:
        measured = saved_by_a_block(made, states)
    rows = families.of(spec.model).saved(spec.model, 0, traits)
    assert measured == TOKENS * sum(row.bytes for row in rows)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("hardware=cpu", "hardware.device=cpu", "cluster.gpus_per_node=2"), "train.kernels"),
        (("model=mixtral_8x7b",), "train.kernels"),
        (("parallel=fsdp_tp",), "parallel.tensor"),
        (("train.compile=true",), "train.compile"),
        (("parallel=tp",), "train.kernels"),
    ],
    ids=" ".join,
)
def test_where_nobody_runs_or_counts_them_they_are_refused(words: tuple[str, ...], path: str) -> None:
    run = ("model=7b", "hardware=h100_80g", "cluster.gpus_per_node=8", "train.kernels=liger", *words)
    errors = {error.path: error for error in findings.errors(make_spec(*run))}
    assert [*errors] == [path]
    assert "train.kernels=none" in errors[path].way_out
