"""Traffic of the model states."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.files import JsonObject
from launcher.estimate.speed.estimate import estimate
from launcher.estimate.speed.result import SpeedEstimate
from launcher.estimate.speed.states import SLOWED, chunk_by_chunk
from launcher.estimate.speed.terms import PARTS, SpeedTerm
from launcher.preflight.assess import parts
from tests.support.helpers import make_spec


def test_replicas_average_the_gradients_of_their_shard_alone() -> None:
    """Optimizer states sharded over the 8 ranks of a node: what two nodes exchange is an eighth, in fp32."""
    words = ("parallel=3d", "parallel.tensor=1", "parallel.pipeline=1", "zero=1", "parallel.replicate=2")
    spec = make_spec("model=llama3_8b", "hardware=h100_80g", "cluster=slurm", "cluster.nodes=2", *words)
    found = estimate(spec, **parts(spec))
    assert found is not None
    averaged = next(term for term in found.terms if term.group == "data parallel, replicas")
    assert averaged.values["k"] == pytest.approx(4 * 8.03e9 / 8, rel=0.01)


def test_deepspeed_all_reduces_gradients_whole_below_stage_3_and_scatters_them_in_it() -> None:
    """An all-reduce takes about two reduce-scatters' time; the bytes that a rank hands over are the same."""
    words = ("model=llama3_8b", "hardware=h100_80g", "cluster=slurm", "cluster.nodes=4")
    spec = make_spec(*words, "parallel=zero2")
    found = parts(spec)
    engine = found["backend"].execution(spec)
    assert engine.reduces_whole
    assert not found["backend"].execution(make_spec(*words, "parallel=zero3")).reduces_whole

    class Scattering:
        def __getattr__(self, name: str) -> object:
            return getattr(found["backend"], name)

        def execution(self, _: object) -> object:
            return replace(engine, reduces_whole=False)

    def seconds(backend: object) -> float:
        speed = estimate(spec, **{**found, "backend": backend})  # type: ignore[arg-type]
        assert speed is not None
        return next(term.seconds for term in speed.terms if term.what == "gradients reduced")

    assert 1.5 < seconds(found["backend"]) / seconds(Scattering()) < 2.1


def test_the_states_of_interleaved_chunks_travel_while_micro_batches_pass_the_other_chunks() -> None:
    """One of 8 chunks is left for the last pass: of 4 stages and 8 chunks 29 eighths of a pass hide what travels."""
    plain = make_spec().parallel
    chunked = replace(plain, pipeline=4, virtual_pipeline=8)
    assert [chunk_by_chunk(chunked, steps) for steps in (16, 2)] == [29 / 8, 15 / 8]
    assert [chunk_by_chunk(replace(plain, pipeline=pipeline), 16) for pipeline in (1, 4)] == [1, 1]


def test_states_hide_behind_compute_and_not_behind_an_exchange_of_tokens_over_the_same_network() -> None:
    words = ("model=deepseek_v3", "hardware=h100_80g", "cluster.nodes=256", "cluster.gpus_per_node=8", "zero=3")
    experts = ("parallel.tensor=2", "parallel.expert=256", "parallel.expert_tensor=1", "train.global_batch_size=2048")
    spec = make_spec(*words, "backend=megatron", *experts)
    found = estimate(spec, **parts(spec))
    assert found is not None
    exposed = {part: sum(term.exposed_seconds for term in found.terms if term.part == part) for part in PARTS}
    (data,) = (term for term in found.terms if term.part == "data")
    steps, layers, times = data.values["m"], data.values["L"], data.values["n"]
    alone = data.values["t_gather"] + data.values["t_again"]
    whole = layers * (steps * alone + times * data.values["t_scatter"]) / found.constant.value
    compute = sum(exposed[part] for part in ("matrix_products", "attention", "memory_bound", "loss", "tensor"))
    assert exposed["expert"] > 0.5 * compute
    assert 0 < whole - exposed["data"] <= (2 - SLOWED) * compute


ALONE = "cluster.gpus_per_node=1"


def _terms(*words: str) -> dict[str, SpeedTerm]:
    spec = make_spec("model=1b", "hardware=h100_80g", "precision=bf16", *words)
    found = estimate(spec, **parts(spec))
    assert found is not None
    return {term.what: term for term in found.terms}


def test_fsdp_casts_shards_and_copies_what_it_gathers_and_reduces() -> None:
    """Blocks (973 million parameters) are gathered twice, the root (263) once; a rank alone reduces by a copy."""
    found, alone = _terms("parallel=fsdp", "cluster.gpus_per_node=8"), _terms("parallel=fsdp", ALONE)
    out, into = found["gathered parameters copied out"], found["shards cast and concatenated"]
    assert (out.values["n"], out.values["k"], into.values["k"]) == (2, 2 + 2, 4 + 2 + 2 + 2)
    assert out.values["P"] == pytest.approx(973.1e6 + 262.7e6 / 2, rel=1e-3)
    assert into.values["P"] == pytest.approx(out.values["P"] / 8, rel=1e-3)
    assert found["gradients concatenated"].values["k"] == 2 + 4
    assert 0 < alone["gradients of the only rank copied"].exposed_seconds < into.seconds * 8
    assert "gradients of the only rank copied" not in found
    assert not {"gathered parameters copied out", "gradients concatenated"} & {*_terms("parallel=ddp")}


def test_zero_copies_gradients_through_buckets_and_takes_their_norm_in_fp64() -> None:
    zero2 = ("parallel=zero2", "optimizer.fused=true")
    alone, one = _terms(*zero2, ALONE), _terms(*zero2, "cluster.gpus_per_node=8")
    assert [of["gradients through buckets"].values["k"] for of in (alone, one)] == [4 * 2, 6 * 2]
    step = one["memory passes of the optimizer"]
    assert step.values["k"] == (2 + 16) + 2 * 2 + (2 + 4) + 2 * 4 + (7 * 4) + (4 + 2)
    assert one["own gradients copied back"].values["P"] == step.values["P"]


def test_adamw_on_lists_writes_and_reads_the_results_of_its_operations() -> None:
    """Eight operations move 80 bytes, the fused kernel 28; both read gradients twice more for their norm."""
    fused, lists = (
        _terms("parallel=ddp", words)["memory passes of the optimizer"].values
        for words in ("optimizer.fused=true", "optimizer.foreach=true")
    )
    assert (lists["n"], lists["k"] - fused["k"]) == (1, 80 - 28)


def test_torchs_own_sum_of_gradients_begins_with_the_first_micro_batch() -> None:
    assert "gradients accumulated" not in _terms("parallel=ddp", ALONE)
    added = _terms("parallel=ddp", ALONE, "train.global_batch_size=3")["gradients accumulated"].values
    assert (added["n"], added["k"]) == (2, 12)


_UNEXPLAINED = (
    "megatron",  # Scores in memory by Megatron-core's own modules.
    "fp8 by rows, compiled",
    "fp8 all-gather",  # The host starts 12,000 kernels, by Python for each.
    "fsdp over 8, Muon",  # Products of DTensors, each started by Python.
    "gemma2_2b",  # Copies and products by elements of eager attention with a soft cap.
    "Liger's loss",  # 32,768 tokens: attention at 69% of the card's peak is faster than is said.
    "deepseek_v3_2",  # What the indexer computes is not counted.
)

_CARD_UNEXPLAINED = (
    "gpt2_medium",  # Small products and kernels take 1.34 times what is said.
    "offloaded to the host",  # The optimizer's step there is the most of what is said.
)


def test_steps_of_our_engines_on_an_h100_are_near_what_is_predicted() -> None:
    """Of runs whose card worked for nine tenths of the step, or of which nobody has looked."""
    off = {}
    for run, found, absent in _on_the_h100():
        card, measured = run["measured"].get("card"), run["measured"]["step_seconds_median"]
        waits = card is not None and card["busy_seconds"] < _BUSY * measured
        if not waits and not any(words in run["name"] for words in _UNEXPLAINED):
            off[run["name"]] = abs((found.step_seconds - absent) / measured - 1)
    assert len(off) >= 50
    assert statistics.median(off.values()) < 0.055
    assert {name: value for name, value in off.items() if value >= 0.155} == {}


def test_the_card_of_an_h100_works_as_long_as_is_predicted_also_where_it_waits_for_the_host() -> None:
    off = {}
    for run, found, absent in _on_the_h100():
        card = run["measured"].get("card")
        if card is not None and not any(words in run["name"] for words in _CARD_UNEXPLAINED):
            host = sum(term.exposed_seconds for term in found.terms if term.part == "host")
            off[run["name"]] = abs((found.step_seconds - absent - host) / card["busy_seconds"] - 1)
    assert len(off) >= 50
    assert statistics.median(off.values()) < 0.08
    assert {name: value for name, value in off.items() if value >= 0.21} == {}


_BUSY = 0.9
"""Share of a step in which the card works where it does not wait for the host."""


def _on_the_h100() -> Iterator[tuple[JsonObject, SpeedEstimate, float]]:
    """Runs that were measured, what is predicted of each, and seconds of exchanges with ranks that do not exist."""
    content = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "gpu.json").read_text())
    for run in content["runs"]:
        if run["measured"]:
            spec = make_spec(*run["overrides"], "hardware=h100_80g")
            found = estimate(spec, **parts(spec))
            assert found is not None
            absent = sum(term.exposed_seconds for term in found.terms if term.part in ("data", "waiting"))
            yield run, found, absent if run["world"] > 1 else 0.0
