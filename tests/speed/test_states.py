"""Traffic of the model states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.estimate.speed.estimate import estimate
from launcher.estimate.speed.states import SLOWED, chunk_by_chunk
from launcher.estimate.speed.terms import PARTS
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
