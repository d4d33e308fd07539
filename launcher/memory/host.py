"""Resources of a run beside its devices: host memory of a node, and checkpoints on disk."""

from __future__ import annotations

from launcher.memory.optimizer_moments import moment_bytes
from launcher.memory.result import DiskSpace, HostMemory
from launcher.rank.model import RankModel


def host_memory(of_stages: tuple[RankModel, ...], device_bytes: int) -> HostMemory:
    """Host memory of one node: what its ranks offload, and on the CPU what they allocate.

    The Python processes, the page cache and the dataloader's workers are left out. A paged optimizer counts here, since
    the driver may move all of it to the host.
    """
    spec = of_stages[0].spec
    ranks = spec.cluster.gpus_per_node
    offloaded = max(offloaded_bytes(rank) for rank in of_stages)
    allocated = device_bytes if spec.hardware.device == "cpu" else 0
    return HostMemory(
        bytes_per_node=ranks * (offloaded + allocated),
        capacity_bytes=spec.hardware.host_memory_bytes,
    )


def offloaded_bytes(rank: RankModel) -> int:
    """Host bytes of one rank: fp32 master, gradients and moments of its shard, and a staging copy of its parameters.

    ``(4 + 4 + 8) P / N`` for an optimizer on the CPU and the parameters' own ``size P / N`` in staging; offloaded
    parameters ``size P / N`` more. On NVMe only buffers stay, which are left out. Pinned blocks are rounded up to a
    power of two (PyTorch issues 95823 and 150517): master and gradients are, the moments are pageable.
    """
    zero, dtypes, optimizer = rank.spec.zero, rank.dtypes, rank.spec.optimizer.name
    size = 0
    elements = rank.elements.optimizer
    if zero.offload_optimizer == "cpu":
        pinned = _pinned(4 * elements, rank)
        size += 2 * pinned + moment_bytes(optimizer, elements, rank.root.optimizer, 4)
        size += _pinned(dtypes.size("parameters") * elements, rank)
    elif optimizer == "paged_adamw_8bit":
        size += 2 * elements
    if zero.offload_parameters == "cpu":
        size += _pinned(dtypes.size("parameters") * rank.elements.parameters, rank)
    return size


def _pinned(size: int, rank: RankModel) -> int:
    """A block of pinned memory: the next power of two; the CPU's ranks do not pin."""
    return 1 << (size - 1).bit_length() if rank.cuda and size > 0 else size


def checkpoint(rank: RankModel, total: int, outside_blocks: int) -> DiskSpace:
    """One checkpoint: parameters, master weights and optimizer states of the whole model, each once.

    ``(4 + 8) P`` for fp32 parameters and Adam, ``(2 + 4 + 8) P`` beside a master copy; a frozen base is not saved.
    ``outside_blocks`` of the ``total`` parameters are embedding and head, of which Muon keeps more.
    ``save.keep`` of them are kept while one more is written; a run that saves at its end alone writes one.
    """
    spec, dtypes = rank.spec, rank.dtypes
    if spec.adapter.name != "none":
        total, outside_blocks = rank.elements.trained, 0
    size = total * (dtypes.size("parameters") + dtypes.size("master"))
    size += moment_bytes(spec.optimizer.name, total, outside_blocks, dtypes.size("optimizer_states"))
    kept = spec.save.keep + 1 if spec.save.every is not None else int(spec.save.last)
    return DiskSpace(checkpoint_bytes=size, kept_bytes=kept * size, capacity_bytes=spec.hardware.disk_bytes)
