"""Activations in host memory: what leaves the device, what the host then holds, and what both passes wait for."""

from __future__ import annotations

import pytest

from launcher.estimate.memory.host import waiting_bytes
from launcher.estimate.rank.model import RankModel
from launcher.preflight import assess
from launcher.spec import RunSpec
from tests.support.helpers import make_spec

GPUS = ("model=7b", "hardware=h100_80g", "cluster.gpus_per_node=8", "precision=bf16")
MOVED = ("checkpointing=full", "checkpointing.offload=true")
TOKENS = 4096
INPUT = TOKENS * 4096 * 2  # One block's input, bf16.


def _rank(spec: RunSpec) -> RankModel:
    return assess.terms_of(spec)[0].model


def _saved(spec: RunSpec, moment: str = "loss_backward") -> int:
    [rank] = assess.terms_of(spec)
    return sum(one.bytes for one in rank.terms if one.pile == "activations" and moment in one.moments)


@pytest.mark.parametrize("parallel", ["parallel=fsdp", "parallel=ddp", "parallel=zero2"])
def test_the_inputs_of_all_blocks_leave_the_device(parallel: str) -> None:
    kept, moved = make_spec(*GPUS, parallel, MOVED[0]), make_spec(*GPUS, parallel, *MOVED)
    size = 2 * INPUT if parallel == "parallel=ddp" else INPUT  # Autocast leaves the residual stream in fp32.
    assert _saved(kept) - _saved(moved) == 32 * size
    assert waiting_bytes(_rank(moved)) == 32 * size, "a power of two, so that pinning adds nothing"


def test_a_pinned_tensor_takes_the_next_power_of_two() -> None:
    spec = make_spec(*GPUS, "parallel=fsdp", *MOVED, "train.sequence_length=3072")
    assert waiting_bytes(_rank(spec)) == 32 * INPUT
    host = assess.estimated(spec).host
    assert any(one.bytes == 8 * 32 * INPUT for one in host.terms if one.pile == "offloaded")


def test_only_the_first_layers_inputs_move_where_those_alone_are_recomputed() -> None:
    spec = make_spec(*GPUS, "parallel=fsdp", *MOVED, "checkpointing.layers=8")
    assert waiting_bytes(_rank(spec)) == 8 * INPUT


def test_on_cpu_ranks_nothing_moves() -> None:
    plain, moved = (
        make_spec("model=tiny", "hardware=cpu", "cluster.gpus_per_node=2", "parallel=fsdp", *words)
        for words in (MOVED[:1], MOVED)
    )
    assert assess.estimated(plain).peak == assess.estimated(moved).peak
    assert waiting_bytes(_rank(moved)) == 0


def test_both_passes_wait_for_every_byte_that_torch_moves() -> None:
    spec = make_spec(*GPUS, "parallel=fsdp", *MOVED)
    speed = assess.assess(spec, search=None).speed
    assert speed is not None
    [copies] = (one for one in speed.terms if one.part == "offload")
    rate = 0.8 * float(spec.hardware.pcie_bandwidth or 0)
    assert copies.seconds == pytest.approx(2 * 32 * INPUT / rate / speed.constant.value, rel=1e-6)


def test_megatron_keeps_the_last_of_the_groups_that_it_moves() -> None:
    base = (*GPUS, "parallel=tp", "parallel.tensor=8")
    plain = make_spec(*base)
    moved = make_spec(*base, "checkpointing.offload=true", "checkpointing.offload_modules=[core_attn]")
    queries_keys_values = TOKENS * 3 * 4096 * 2 // 8
    assert _saved(plain) - _saved(moved) == 31 * queries_keys_values
    assert waiting_bytes(_rank(moved)) == 32 * (1 << (queries_keys_values - 1).bit_length())


def test_megatron_moves_all_that_the_first_layers_save() -> None:
    base = (*GPUS, "parallel=tp", "parallel.tensor=8")
    one = _saved(make_spec(*base, "model.num_hidden_layers=2")) - _saved(make_spec(*base, "model.num_hidden_layers=1"))
    moved = make_spec(*base, "checkpointing.offload=true", "checkpointing.layers=24")
    assert _saved(make_spec(*base)) - _saved(moved) == 23 * one, "one block's tensors are on their way"


def test_megatron_drops_the_modules_that_are_named() -> None:
    base = (*GPUS, "parallel=tp", "parallel.tensor=8")
    dropped = make_spec(*base, "checkpointing=selective", "checkpointing.modules=[mlp]")
    assert _saved(make_spec(*base)) - _saved(dropped) == 32 * TOKENS * 3 * 11008 * 2 // 8


def test_megatron_moves_scores_in_full_with_the_attention_that_saves_them() -> None:
    base = (*GPUS, "parallel=tp", "parallel.tensor=8", "model.attention=eager")
    moved = make_spec(*base, "checkpointing.offload=true", "checkpointing.offload_modules=[core_attn]")
    (kind,) = _rank(moved).blocks
    assert {row.name for row in kind.offloaded} == {"queries, keys, values", "scores"}
