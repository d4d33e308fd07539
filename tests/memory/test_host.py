"""Host memory of a node: every process that a run starts there, and what its ranks keep."""

from __future__ import annotations

import json

import pytest

from launcher.backends.deepspeed import ds_config
from launcher.estimate.memory.device import CONTEXT_BYTES
from launcher.estimate.memory.host import MEASURED, processes_of
from launcher.estimate.memory.result import HostMemory
from launcher.estimate.memory.terms import HostPile
from launcher.preflight import assess
from launcher.spec import RunSpec
from tests.support.helpers import make_spec

GIB = 2**30
CPU = ("model=tiny", "hardware=cpu", f"hardware.host_memory_bytes={64 * GIB}", "data=synthetic")
GPU = ("model=1b", "hardware=h100_80g", "cluster.gpus_per_node=8")


def host(spec: RunSpec) -> HostMemory:
    return assess.estimated(spec).host


def size(found: HostMemory, pile: HostPile) -> int:
    return sum(term.bytes for term in found.piles.get(pile, ()))


def test_every_engine_was_measured_with_what_it_was_measured_by() -> None:
    content = json.loads(MEASURED.read_text())
    assert set(content["measured"]) == {"fsdp", "deepspeed", "megatron"}
    assert content["command"] == "python -m benchmarks.host_memory"
    assert content["versions"]["torch"]
    for name in content["measured"]:
        found = processes_of(name)
        assert 2**27 < found.rank_bytes < 2 * GIB, "an interpreter with torch takes some hundreds of MiB"
        assert 0 < found.reader_bytes < found.rank_bytes, "a fork shares what it does not write to"


def test_an_engine_that_nobody_measured_counts_as_the_largest() -> None:
    assert processes_of("new").rank_bytes == max(
        processes_of(name).rank_bytes for name in ("fsdp", "deepspeed", "megatron")
    )


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_each_rank_has_an_interpreter_and_a_node_the_rest_once(ranks: int) -> None:
    found = processes_of("fsdp")
    counted = host(make_spec(*CPU, "parallel=fsdp", f"cluster.gpus_per_node={ranks}"))
    once = found.node_bytes + found.library_bytes
    assert size(counted, "processes") == ranks * found.rank_bytes + once
    assert size(counted, "readers") == 0


def test_on_the_cpu_the_tensors_come_beside_the_interpreters_and_on_gpus_they_do_not() -> None:
    spec = make_spec(*CPU, "parallel=fsdp", "cluster.gpus_per_node=2")
    assert size(host(spec), "tensors") == 2 * assess.estimated(spec).peak.device_bytes
    gpus = host(make_spec(*GPU, "parallel=fsdp"))
    assert list(gpus.piles) == ["processes"]
    offloaded = host(make_spec(*GPU, "parallel=zero3", "zero.offload_optimizer=cpu"))
    assert list(offloaded.piles) == ["offloaded", "processes"]


def test_fsdp2_offloads_parameters_gradients_and_moments_and_nothing_on_the_cpu() -> None:
    offload = ("parallel=fsdp", "zero.offload_optimizer=cpu", "zero.offload_parameters=cpu")
    estimate = assess.estimated(make_spec(*GPU, *offload))
    shard = estimate.parameters.per_rank
    pinned = 1 << (4 * shard - 1).bit_length()
    assert size(estimate.host, "offloaded") == 8 * (2 * pinned + 8 * shard)
    alone = assess.estimated(make_spec(*GPU, offload[0], offload[2]))
    assert (alone.phases, alone.host.terms) == (estimate.phases, estimate.host.terms), "one policy moves all of them"
    moved, stayed = (assess.estimated(make_spec(*CPU, *words)) for words in (offload, offload[:1]))
    assert (moved.phases, moved.host.terms) == (stayed.phases, stayed.host.terms)


def test_nvme_leaves_buffers_in_host_memory_and_files_on_the_disk() -> None:
    """Four buffers for a sub-group in fp32, five for a parameter, and beside them the pinned gradients."""
    offload = ("zero.offload_optimizer=nvme", "zero.offload_parameters=nvme", "zero.nvme_path=/disk")
    words = (*GPU, "parallel=zero3", *offload, "zero.sub_group_size=10000000")
    spec = make_spec(*words)
    estimate = assess.estimated(spec)
    shard, block = estimate.parameters.per_rank, ds_config.build(spec)["zero_optimization"]["offload_param"]
    group = 10_000_000 + spec.model.vocab_size * spec.model.hidden_size // 8
    small = 2 * spec.model.num_hidden_layers * spec.model.hidden_size * spec.model.key_value_size // 8
    buffers = 4 * 4 * group + 2 * (5 * block["buffer_size"] + group)
    pinned, own = 2 ** (2 * shard - 1).bit_length(), buffers + 2 * small
    assert size(estimate.host, "offloaded") == 8 * (pinned + own)
    assert estimate.disk.swapped_bytes == 8 * (16 * shard + 2 * (shard - small)), "shares below 1 MiB stay in memory"
    options = ("offload_optimizer.buffer_count=8", "offload_param.max_in_cpu=1000000")
    more = host(make_spec(*words, *(f"+backend.extra.zero_optimization.{option}" for option in options)))
    assert size(more, "offloaded") == 8 * (pinned + own + 4 * 4 * group + 2 * 1_000_000)


def test_states_that_are_written_in_the_background_wait_on_the_host() -> None:
    words = (*GPU, "parallel=fsdp", "save.every=10")
    beside, at_once = (host(make_spec(*words, f"save.async={word}")) for word in ("true", "false"))
    shard = assess.estimated(make_spec(*words)).parameters.per_rank
    assert size(beside, "saving") == 8 * (4 + 8) * shard
    assert size(at_once, "saving") == 0, "a tensor at a time goes through the host"
    on_cpu = (*CPU, "parallel=fsdp", "cluster.gpus_per_node=2", "save.every=10")
    saved, kept = (assess.estimated(make_spec(*on_cpu, *more)).phases for more in (("save.async=true",), ()))
    assert saved["checkpoint_save"] - kept["checkpoint_save"] == (4 + 8) * saved_shard(on_cpu)
    assert saved | {"checkpoint_save": 0} == kept | {"checkpoint_save": 0}


def test_a_megatron_rank_on_a_gpu_keeps_a_process_that_writes_in_the_background() -> None:
    """It selects the rank's GPU as it starts (``async_loop``), so a second CUDA context is on it until the end."""
    words = ("model=7b", "hardware=h100_80g", "cluster.gpus_per_node=8", "parallel=tp", "save.every=10")
    without, beside = (assess.estimated(make_spec(*words, f"save.async={word}")) for word in ("false", "true"))
    assert beside.peak.device_bytes - without.peak.device_bytes == CONTEXT_BYTES
    more = size(beside.host, "processes") - size(without.host, "processes")
    assert more == 8 * processes_of("megatron").rank_bytes
    fsdp = host(make_spec(*GPU, "parallel=fsdp", "save.every=10", "save.async=true"))
    assert size(fsdp, "processes") == size(host(make_spec(*GPU, "parallel=fsdp")), "processes"), "a thread writes"


def saved_shard(words: tuple[str, ...]) -> int:
    return assess.estimated(make_spec(*words)).parameters.per_rank


def test_ranks_of_trl_that_each_load_a_whole_model_are_held_against_the_memory_of_the_host() -> None:
    words = (*GPU, "task=dpo", "data=chat", "model.weights=/weights", f"hardware.host_memory_bytes={64 * GIB}")
    found = assess.estimated(make_spec(*words, "parallel=fsdp"))
    assert size(found.host, "loading") == 8 * 2 * 4 * found.parameters.total, "the model and its reference in fp32"
    assert found.host.bytes_per_node > 64 * GIB
    mapped = {"read by one rank": "parallel=zero3", "in the file's 16 bits": "parallel=zero2"}
    for why, word in mapped.items():
        assert size(host(make_spec(*words, word)), "loading") == 0, why
    adapter = make_spec(*words, "parallel=fsdp", "adapter=lora")
    assert size(host(adapter), "loading") == 0
    assert size(host(make_spec(*words, "parallel=fsdp", "model.weights=null")), "loading") == 0, "fp32 of the run's own"


def test_the_first_rank_of_trl_gathers_what_it_exports() -> None:
    words = ("model=1b", "hardware=h100_80g", "cluster.gpus_per_node=8", "task=sft", "data=chat")
    whole = assess.estimated(make_spec(*words, "parallel=fsdp", "save.export=safetensors"))
    assert size(whole.host, "saving") == 4 * whole.parameters.total
    assert size(host(make_spec(*words, "parallel=fsdp", "save.export=none")), "saving") == 0
    replicas = host(make_spec(*words, "parallel=ddp", "save.export=safetensors"))
    assert size(replicas, "saving") == 4 * whole.parameters.total, "safetensors copies all that a GPU has"
    adapter = host(make_spec(*words, "model.weights=/w", "parallel=fsdp", "adapter=lora", "save.export=safetensors"))
    assert 0 < size(adapter, "saving") < 2**28


@pytest.mark.parametrize(("layout", "bytes_each"), [("fsdp", 4), ("ddp", 4), ("fsdp_pp", 4), ("zero3", 2), ("tp", 2)])
def test_the_ranks_of_a_node_gather_their_shares_of_an_export(layout: str, bytes_each: int) -> None:
    words = (*GPU, "cluster.nodes=2", f"parallel={layout}", "save.last=false", "train.gradient_accumulation=2")
    found = assess.estimated(make_spec(*words, "save.export=safetensors"))
    assert size(found.host, "saving") == pytest.approx(bytes_each * found.parameters.total / 2, abs=1)
    assert size(host(make_spec(*words)), "saving") == 0


def test_deepspeed_copies_a_flat_tensor_to_save_it_and_reads_its_own_files_whole() -> None:
    """``torch.save`` moves a storage at a time; ``_load_checkpoint`` reads weights, which stage 3 has in its shards."""
    for stage in (1, 2, 3):
        words = (*GPU, "model=7b", f"parallel=zero{stage}")
        found = assess.estimated(make_spec(*words))
        position, group = found.parameters.total, found.parameters.total // 8
        assert size(found.host, "saving") == pytest.approx(8 * 4 * group, rel=1e-6)
        loading = size(host(make_spec(*words, "save.load=checkpoints")), "loading")
        assert loading == pytest.approx(8 * (max(2 * position, 12 * group) if stage < 3 else 12 * group), rel=1e-6)
    small = host(make_spec(*words, "zero.sub_group_size=100000000"))
    assert 8 * 4 * 1e8 < size(small, "saving") < 8 * 4 * group, "a sub-group is a tensor of its own"
    assert size(host(make_spec(*words, "zero.offload_optimizer=cpu")), "saving") == 0, "it is on the host"
    everything = host(make_spec(*GPU, "parallel=zero0", "save.load=checkpoints"))
    whole = assess.estimated(make_spec(*GPU, "parallel=zero0")).parameters.total
    assert size(everything, "loading") == pytest.approx(8 * (2 + 4 + 8) * whole, rel=1e-6), "one file has all"


def test_whole_states_of_megatron_are_gathered_by_every_rank_and_a_later_stage_at_once() -> None:
    """Megatron-core gathers bucket by bucket; all of a stage behind the first, and of each model chunk, is one."""
    words = ("model=7b", "hardware=h100_80g", "cluster.gpus_per_node=8", "cluster.nodes=2", "precision.gradients=null")
    layouts = {stages: (*words, "parallel=pp", f"parallel.pipeline={stages}") for stages in (1, 2)}
    for stages, layout in layouts.items():
        whole, shards = (assess.estimated(make_spec(*layout, f"save.reshardable={word}")) for word in ("true", "null"))
        position, data = whole.parameters.per_rank, 16 // stages
        own = 14 * position // data
        at_once = position if stages > 1 else 40_000_000
        assert size(whole.host, "saving") == pytest.approx(
            8 * (12 * position + max(12 * at_once * (1 + 1 / data), own)), rel=1e-3
        )
        assert size(shards.host, "saving") == pytest.approx(8 * own, rel=1e-3)
        beside = whole.phases["checkpoint_save"] - shards.phases["checkpoint_save"]
        assert beside == pytest.approx(4 * (2 + 1 / data) * at_once, rel=1e-3)


def test_readers_are_processes_and_have_steps_ready() -> None:
    words = ("train.sequence_length=1023", "train.micro_batch_size=4", "train.global_batch_size=64", "data.workers=3")
    idle, row = processes_of("fsdp").reader_bytes, 1024 * 8
    pinned = host(make_spec(*GPU, "parallel=fsdp", *words))
    assert size(pinned, "readers") == 8 * 3 * (idle + 2 * 2 * 8 * row), "8 sequences a rank, twice ahead, and pinned"
    assert size(host(make_spec(*GPU, "parallel=fsdp", *words, "script=train.py")), "readers") == 0
    on_cpu = host(make_spec(*CPU, "parallel=fsdp", "cluster.gpus_per_node=8", *words))
    assert size(on_cpu, "readers") == 8 * 3 * (idle + 2 * 8 * row)


def test_the_piles_are_printed_with_formula_and_source() -> None:
    words = ("data.workers=2", "hardware.host_memory_bytes=1700000000")
    document = host(make_spec(*CPU, "parallel=fsdp", "cluster.gpus_per_node=2", *words)).as_dict()
    assert document["capacity_bytes"] == 1_700_000_000
    piles = document["piles"]
    assert isinstance(piles, list)
    assert [pile["pile"] for pile in piles] == ["tensors", "processes", "readers"]
    assert sum(pile["bytes"] for pile in piles) == document["bytes_per_node"]
    assert "Python, torch and the engine in each rank: 2 x " in piles[1]["formula"]
    assert "processes.json" in piles[1]["source"]


@pytest.mark.parametrize(
    ("memory", "request_", "capacity"),
    [
        ("64G", "mem", 64 * GIB),
        ("2048", "mem", 2 * GIB),
        ("8g", "mem_per_gpu", 32 * GIB),
        ("4G", "mem_per_cpu", 24 * GIB),
        ("0", "mem", 99 * GIB),
        ("1T", "mem", 99 * GIB),
    ],
)
def test_a_job_has_what_it_asks_slurm_for(memory: str, request_: str, capacity: int) -> None:
    words = (f"cluster.memory={memory}", f"cluster.memory_request={request_}", "cluster.cpus_per_node=6")
    spec = make_spec(*GPU, "cluster=slurm", *words, "cluster.gpus_per_node=4", f"hardware.host_memory_bytes={99 * GIB}")
    assert host(spec).capacity_bytes == capacity
    local = make_spec(*GPU, *words, f"hardware.host_memory_bytes={99 * GIB}")
    assert host(local).capacity_bytes == 99 * GIB
