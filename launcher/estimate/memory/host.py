"""Host memory of a node, and disk space of checkpoints."""

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from math import ceil
from pathlib import Path

from launcher.base import files
from launcher.base.frozen import dataclass
from launcher.estimate.memory.moments import ALWAYS, LOAD, SAVE
from launcher.estimate.memory.optimizer import paged_values
from launcher.estimate.memory.result import DiskSpace, HostMemory
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.counts import whole_model
from launcher.estimate.rank.formats import moment_bytes
from launcher.estimate.rank.model import RankModel
from launcher.spec import ClusterSpec, RunSpec

MEASURED = Path(__file__).with_name("processes.json")  # Written by ``python -m benchmarks.host_memory``.
_AHEAD = 2  # Batches that each worker of torch's ``DataLoader`` prefetches (``prefetch_factor``).
_ID_BYTES = 8
_EACH = "n * size"
_SOURCE = "launcher/estimate/memory/host.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Host bytes of one engine's processes, without tensors."""

    rank_bytes: int  # Private bytes of a rank.
    reader_bytes: int  # Private bytes of a data loader process of a rank.
    node_bytes: int  # Private bytes of the processes that a node has once: the launcher's and torchrun.
    library_bytes: int  # Pages of libraries, which the processes of a node share.


@cache
def processes_of(name: str) -> Processes:
    """Return the measured bytes of an engine; where it was not measured, those of the engine with the largest ranks."""
    found = files.own_json(MEASURED)["measured"]
    return Processes(**found.get(name) or max(found.values(), key=lambda each: int(each["rank_bytes"])))


def host_memory(of_stages: tuple[RankModel, ...], device_bytes: int) -> HostMemory:
    """Host memory of one node: its processes, what its ranks offload, and on the CPU what they allocate.

    Left out are the page cache, which the kernel reclaims, files in memory (``/dev/shm`` but for the data loaders'
    batches), and what the driver takes for ranks on GPUs. A paged optimizer counts as offloaded, since the driver may
    move all of it to the host.
    """
    spec = of_stages[0].spec
    allocated = device_bytes if spec.hardware.device == "cpu" else 0  # It includes what CPU ranks offload.
    found = (*_processes(of_stages[0], allocated), *_kept(of_stages), *(() if allocated else _copied(of_stages)))
    terms = tuple(one for one in found if one.bytes)
    return HostMemory(bytes_per_node=sum(one.bytes for one in terms), capacity_bytes=_capacity(spec), terms=terms)


def _capacity(spec: RunSpec) -> int | None:
    """The memory of a node, or what a Slurm job requests if that is less: its cgroup enforces the request."""
    known = (spec.hardware.host_memory_bytes, _asked_of_slurm(spec.cluster))
    return min((size for size in known if size is not None), default=None)


def _asked_of_slurm(cluster: ClusterSpec) -> int | None:
    """Bytes per node that ``cluster.memory`` requests, in MiB unless it names a unit (sbatch(1), ``--mem``).

    None where nothing or the whole node is requested, or an amount per CPU and the number of CPUs is unknown.
    """
    if cluster.kind != "slurm" or not cluster.memory:
        return None
    found = re.fullmatch(r"(\d+)([KMGT]?)", cluster.memory, re.IGNORECASE)
    many = {"mem": 1, "mem_per_gpu": cluster.gpus_per_node, "mem_per_cpu": cluster.cpus_per_node}
    parts = many[cluster.memory_request]
    if found is None or parts is None or not int(found[1]):
        return None
    unit: int = 1024 ** (1 + "KMGT".index(found[2].upper() or "M"))
    return parts * int(found[1]) * unit


def _processes(rank: RankModel, allocated: int) -> Iterator[MemoryTerm]:
    n, found = rank.spec.cluster.gpus_per_node, processes_of(rank.spec.backend.name)
    source = "measured, launcher/estimate/memory/processes.json"
    what = "tensors of the CPU ranks"
    yield term("tensors", ALWAYS, what, _EACH, "the peak of the worst rank", n=n, size=allocated)
    what = "Python, torch and the engine in each rank"
    yield term("processes", ALWAYS, what, _EACH, source, n=n, size=found.rank_bytes)
    written = found.rank_bytes * rank.engine.saving.writer
    yield term("processes", ALWAYS, "processes that write checkpoints", _EACH, source, n=n, size=written)
    what = "launcher and torchrun, and library pages that all processes share"
    yield term("processes", ALWAYS, what, "size", source, size=found.node_bytes + found.library_bytes)
    yield from _readers(rank.spec, found.reader_bytes)


def _kept(of_stages: tuple[RankModel, ...]) -> Iterator[MemoryTerm]:
    spec = of_stages[0].spec
    states = 0 if spec.hardware.device == "cpu" else max(offloaded_bytes(rank) for rank in of_stages)
    waiting = max(waiting_bytes(rank) for rank in of_stages)
    for what, size in {"offloaded model states": states, "offloaded activations": waiting}.items():
        yield term("offloaded", ALWAYS, what, _EACH, _SOURCE, n=spec.cluster.gpus_per_node, size=size)


def _copied(of_stages: tuple[RankModel, ...]) -> Iterator[MemoryTerm]:
    """Copies on the host while the model is loaded, saved or exported, whichever takes most.

    They do not overlap: a background save ends before the next one and before the export (``Checkpoints.wait``).
    """
    first, n = of_stages[0], of_stages[0].spec.cluster.gpus_per_node
    loaded, saved = (max(each(rank) for rank in of_stages) for each in (loaded_bytes, saving_bytes))
    found = (
        term("loading", LOAD, "models and checkpoints that the ranks read", _EACH, _SOURCE, n=n, size=loaded),
        term("saving", SAVE, "copies of the states for a checkpoint", _EACH, _SOURCE, n=n, size=saved),
        term("saving", SAVE, "weights gathered for the export", "size", _SOURCE, size=exported_bytes(first)),
    )
    yield max(found, key=lambda one: one.bytes)


def _readers(spec: RunSpec, idle: int) -> Iterator[MemoryTerm]:
    """The data loader processes (``data.workers``) and the steps that they prefetch, which GPU runs also pin."""
    if spec.script is not None or not spec.data.workers:
        return
    n, what = spec.cluster.gpus_per_node * spec.data.workers, "data loader processes"
    yield term("readers", ALWAYS, what, "n * size", "measured, launcher/estimate/memory/processes.json", n=n, size=idle)
    size = spec.gradient_accumulation * spec.micro_batch_size * (spec.sequence_length + 1) * _ID_BYTES
    copies = 2 if spec.hardware.device == "cuda" else 1
    what, source = "steps that they prefetch", "torch DataLoader, prefetch_factor=2"
    yield term("readers", ALWAYS, what, "n * ahead * size", source, n=n, ahead=_AHEAD * copies, size=size)


def offloaded_bytes(rank: RankModel) -> int:
    """Offloaded host bytes of one rank: fp32 master, gradients and moments of its shard, and a staged parameter copy.

    ``(4 + 4 + 8) P / N`` for an optimizer on the CPU and ``size P / N`` for staging the parameters; offloaded
    parameters take ``size P / N`` more. On NVMe only buffers stay (:func:`_swapped_bytes`). Pinned blocks are rounded
    up to a power of two (PyTorch issues 95823 and 150517): master and gradients are pinned, the moments pageable. FSDP2
    has no master and no staging: parameters, gradients and moments in the parameters' format (``CPUOffloadPolicy``).
    """
    zero, dtypes, optimizer = rank.spec.zero, rank.dtypes, rank.spec.optimizer.name
    size = _swapped_bytes(rank)
    elements = rank.elements.optimizer
    if rank.spec.parallel.shard and zero.offload_optimizer == "cpu":
        size += _pinned(dtypes.size("parameters") * elements, rank)
        size += moment_bytes(optimizer, elements, rank.root.optimizer, dtypes.size("parameters"))
    elif zero.offload_optimizer == "cpu":
        size += 2 * _pinned(4 * elements, rank) + moment_bytes(optimizer, elements, rank.root.optimizer, 4)
        size += _pinned(dtypes.size("parameters") * elements, rank)
    elif optimizer == "paged_adamw_8bit":
        size += 2 * paged_values(rank)
    if zero.offload_parameters == "cpu":
        size += _pinned(dtypes.size("parameters") * rank.elements.parameters, rank)
    return size


def waiting_bytes(rank: RankModel) -> int:
    """Host bytes of a rank's offloaded activations: one pinned block per tensor, block and micro-batch in flight."""
    tok = rank.tokens
    sizes = (
        (one.count, _pinned(ceil(rank.token_bytes([row]) * tok), rank)) for one in rank.blocks for row in one.offloaded
    )
    return ceil(rank.view.in_flight * sum(count * size for count, size in sizes))


def saving_bytes(rank: RankModel) -> int:
    """Host bytes of one rank's states while a checkpoint is saved; none in a run that saves only if it is stopped.

    Where shards are gathered, ``4 x 3 P`` of weights and moments stay. Beside these come first ``4 x 3 b`` of a bucket
    (the list of shards, and the concatenations of these and of the earlier ones) with the rank's own shards of it, then
    what the rank writes itself (:func:`checkpointed_bytes`). Loading such a checkpoint reads it into ``4 x 3 P``.
    ``torch.save`` copies one GPU tensor at a time, the largest of which is a flat group of fp32 weights.
    """
    spec, saving = rank.spec, rank.engine.saving
    own = ceil(saving.own * checkpointed_bytes(rank)) if spec.saves and saving.own else 0
    if spec.saves and saving.weights:
        own += weights_bytes(rank)
    if spec.saves and saving.files and spec.zero.stage > 0 and spec.zero.offload_optimizer == "none":
        own = max(own, 4 * _group(rank))
    if not saving.gathers or not (spec.saves or spec.save.load):
        return own
    trained, at_once = rank.elements.trained, gathered_at_once(rank) if spec.saves else 0
    shards = ceil(Fraction(at_once * rank.elements.optimizer, max(1, trained)))
    return 12 * trained + max(12 * (at_once + shards), own)


def weights_bytes(rank: RankModel) -> int:
    """Bytes of a rank's trained weights in the format in which it holds them."""
    return rank.dtypes.size("parameters") * rank.elements.trained


def checkpointed_bytes(rank: RankModel) -> int:
    """Bytes of one rank's shard of a checkpoint: its parameters, master weights and optimizer states."""
    dtypes, shard = rank.dtypes, rank.elements.optimizer
    moments = moment_bytes(rank.spec.optimizer.name, shard, rank.root.optimizer, dtypes.size("optimizer_states"))
    return (dtypes.size("parameters") + dtypes.size("master")) * shard + moments


def staged(rank: RankModel) -> Iterator[MemoryTerm]:
    """Copies of a CPU rank's part of a checkpoint, for DeepSpeed or a background write; GPU ranks' are on the host.

    ``_copy_state_dict`` of ``torch/distributed/_state_dict_utils.py``, by ``async_save``;
    ``clone_tensors_for_torch_save`` of ``deepspeed/checkpoint/utils.py``, by ``_save_checkpoint``.
    """
    if rank.cuda or not rank.spec.saves:
        return
    if rank.engine.saving.weights:
        what, source = "copy of the saved weights", "deepspeed/checkpoint/utils.py"
        yield term("temporary", SAVE, what, "copy", source, copy=weights_bytes(rank))
    if rank.spec.save.asynchronous:
        what, source = "copy that is written in the background", "torch/distributed/checkpoint/staging.py"
        yield term("temporary", SAVE, what, "copy", source, copy=checkpointed_bytes(rank))


def loaded_bytes(rank: RankModel) -> int:
    """Host bytes of whole models that a rank loads, or of its own checkpoint files while it reads them.

    It reads first the weights, which ZeRO 3 stores with the states, and then the states; without ZeRO both are in one
    file (``_load_checkpoint``, ``_load_zero_checkpoint`` of DeepSpeed 0.19.8). Left out: another layout's conversion.
    """
    spec, size = rank.spec, rank.engine.loads
    whole = size * whole_model(rank.family, spec.model, spec.adapter).total if size else 0
    if spec.save.load is None or not rank.engine.saving.files:
        return whole
    states = checkpointed_bytes(rank) - rank.dtypes.size("parameters") * rank.elements.optimizer
    states = 0 if spec.zero.offload_optimizer == "nvme" else states  # Swap files are copied on the disk.
    weights = weights_bytes(rank) if spec.zero.stage < 3 else 0
    return max(whole, weights + states if spec.zero.stage == 0 else max(weights, states))


def exported_bytes(rank: RankModel) -> int:
    """Host bytes per node of an export: each rank gathers its share of the files, or the first rank all of them.

    The first rank also gathers an adapter.
    """
    spec, saving = rank.spec, rank.engine.saving
    if spec.save.export == "none":
        return 0
    found, adapted = whole_model(rank.family, spec.model, spec.adapter), spec.adapter.name != "none"
    size = rank.dtypes.size("parameters") * (found.trained if adapted else found.total)
    return size if adapted or saving.exports_whole else ceil(Fraction(size, spec.cluster.nodes))


def gathered_at_once(rank: RankModel) -> int:
    """Parameters of the bucket whose shards are gathered together; later stages and model chunks have a single bucket.

    Routed experts under expert parallelism have buffers of their own.
    """
    elements, chunks, bucket = rank.elements, rank.spec.parallel.virtual_pipeline, rank.engine.saving.bucket
    apart = elements.expert and rank.spec.parallel.expert > 1
    buffer = min(max(elements.dense, elements.expert) if apart else elements.trained, elements.trained)
    chunk = -(-buffer // chunks)
    return chunk if bucket is None or rank.view.stage > 0 or chunks > 1 else min(chunk, bucket)


def _swapped_bytes(rank: RankModel) -> int:
    """Host bytes of NVMe offload: gradients of the shard, and page-locked buffers, which are not rounded up.

    A buffer for states holds the largest sub-group of the shard in fp32 (``SwapBufferManager``), a buffer for
    parameters one weight. Beside these are the sub-group that is written after the step
    (``reserve_partitioned_swap_space``) and the parameters that stay in memory (DeepSpeed 0.19.8
    ``runtime/zero/stage3.py``): as many as were requested, and weights whose share is below ``_SWAPPED``.
    """
    zero, dtypes, buffers = rank.spec.zero, rank.dtypes, rank.engine.swapping
    if buffers is None:
        return 0
    size, group = 0, _group(rank)
    if zero.offload_optimizer == "nvme":
        size += _pinned(dtypes.size("accumulate") * rank.elements.optimizer, rank)
        size += buffers.state_buffers * 4 * group
    if zero.offload_parameters == "nvme":
        elements = buffers.parameter_buffers * buffers.buffer_elements + group + _small_shares(rank)
        size += dtypes.size("parameters") * (elements + min(buffers.in_memory, rank.elements.parameters))
    return size


def _group(rank: RankModel) -> int:
    """Elements of the largest flat group of a rank's shard: all of it, or in stage 3 a sub-group."""
    shard, zero = rank.elements.optimizer, rank.spec.zero
    return min(shard, zero.sub_group_size + rank.elements.largest_shard) if zero.stage == 3 else shard


def swap_files(rank: RankModel) -> int:
    """Bytes of one rank's files on the NVMe disk: fp32 weights, gradients and moments, and parameters in their format.

    ``(4 + 4 + 8) P / N`` and ``size P / N`` (``OptimizerStateSwapInfo``, ``AsyncPartitionedParameterSwapper``).
    """
    zero, size = rank.spec.zero, 0
    if zero.offload_optimizer == "nvme":
        elements = rank.elements.optimizer
        size += 8 * elements + moment_bytes(rank.spec.optimizer.name, elements, rank.root.optimizer, 4)
    if zero.offload_parameters == "nvme":
        size += rank.dtypes.size("parameters") * (rank.elements.parameters - _small_shares(rank))
    return size


_SWAPPED = 2**20  # Bytes of the smallest share that is swapped: ``MIN_AIO_BYTES``, ``runtime/swap_tensor/utils.py``.


def _small_shares(rank: RankModel) -> int:
    """Elements of the shares of matrices that are too small to be swapped."""
    ranks, least = rank.spec.shard_degree, _SWAPPED / rank.dtypes.size("parameters")
    matrices = (*rank.embedding.matrices, *rank.all_blocks.matrices, *rank.head.matrices)
    return sum(share for each in matrices if (share := ceil(each / ranks)) < least)


def _pinned(size: int, rank: RankModel) -> int:
    """Bytes of a pinned block, the next power of two; CPU ranks do not pin."""
    return 1 << (size - 1).bit_length() if rank.cuda and size > 0 else size


def checkpoint(rank: RankModel) -> DiskSpace:
    """Disk space of checkpoints, each with the whole model's parameters, master weights and optimizer states once.

    ``(4 + 8) P`` for fp32 parameters and Adam, ``(2 + 4 + 8) P`` with a master copy; a frozen base is not saved. Muon
    keeps more for the parameters outside the blocks.
    ``save.keep`` checkpoints are kept while one more is written, since the oldest is removed once that is complete; a
    run that writes fewer keeps all of them.
    """
    spec, dtypes = rank.spec, rank.dtypes
    found, adapted = whole_model(rank.family, spec.model, spec.adapter), spec.adapter.name != "none"
    total, outside_blocks = (found.trained, 0) if adapted else (found.total, found.outside)
    size = total * (dtypes.size("parameters") + dtypes.size("master"))
    size += moment_bytes(spec.optimizer.name, total, outside_blocks, dtypes.size("optimizer_states"))
    written = (0 if spec.save_every is None else (spec.steps - 1) // spec.save_every) + int(spec.save.last)
    kept = min(spec.save.keep + 1, written)
    return DiskSpace(
        checkpoint_bytes=size,
        kept_bytes=kept * size,
        capacity_bytes=spec.hardware.disk_bytes,
        swapped_bytes=spec.cluster.gpus_per_node * swap_files(rank),
    )
