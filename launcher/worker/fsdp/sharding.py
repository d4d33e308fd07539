"""Sharding of the model over the ranks: FSDP2, HSDP, tensor parallel ranks inside of them, or DDP."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from launcher.backends.fsdp.dtypes import dtypes
from launcher.spec import RunSpec
from launcher.worker.engine import Context
from launcher.worker.fsdp import tensor_parallel
from launcher.worker.model import network
from launcher.worker.model.language_model import LanguageModel

_NEW = "forward_sync_buffers"

WITHOUT_BUFFER_SYNC: dict[str, Any] = {
    _NEW if _NEW in inspect.signature(DistributedDataParallel).parameters else "broadcast_buffers": False
}
"""DDP's argument that leaves buffers as they are in the forward pass; the older name is deprecated since torch 2.13."""

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def mesh(context: Context) -> DeviceMesh:
    """The mesh of the ranks: stages outermost, tensor parallel ranks neighbours; an axis of one rank is left out."""
    parallel = context.spec.parallel
    axes = {
        "pipeline": parallel.pipeline,
        "replicate": parallel.replicate,
        "shard": context.world // (parallel.pipeline * parallel.replicate * parallel.tensor),
        "tensor": parallel.tensor,
    }
    used = {name: size for name, size in axes.items() if size > 1 or name == "shard"}
    return init_device_mesh(context.device.type, tuple(used.values()), mesh_dim_names=tuple(used))


def shard(model: LanguageModel, context: Context, ranks: DeviceMesh) -> None:
    """Cut and shard a model on the meta device in place."""
    spec = context.spec
    names = ranks.mesh_dim_names or ()
    if spec.parallel.tensor > 1:
        tensor_parallel.apply(model.network, ranks["tensor"], sequence=spec.parallel.sequence)
    data = ranks["replicate", "shard"] if "replicate" in names else ranks["shard"]
    settings: dict[str, Any] = {"mesh": data, "mp_policy": _precision(spec), "offload_policy": _offload(context)}
    reshard = spec.backend.reshard_after_forward
    if reshard is None:
        reshard = spec.zero.stage == 3
    for block in network.blocks(model.network):
        fully_shard(block, reshard_after_forward=reshard, **settings)
    fully_shard(model, **settings)  # The root stays gathered between forward and backward, which begins with it.


def _precision(spec: RunSpec) -> MixedPrecisionPolicy:
    formats = dtypes(spec)
    return MixedPrecisionPolicy(
        param_dtype=None if formats.compute == formats.parameters else TORCH_DTYPES[formats.compute],
        reduce_dtype=TORCH_DTYPES[formats.reduce],
    )


def _offload(context: Context) -> OffloadPolicy:
    if context.spec.zero.offload_parameters == "none":
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=context.device.type == "cuda")


def replicate(model: nn.Module, context: Context, ranks: DeviceMesh | None) -> DistributedDataParallel:
    """A model on its device in DDP; all ranks have drawn the same values, so nothing is sent at the start."""
    backend = context.spec.backend
    wrapped = DistributedDataParallel(
        model,
        device_ids=None if context.device.type == "cpu" else [context.device],
        gradient_as_bucket_view=backend.bucket_view,
        bucket_cap_mb=backend.bucket_cap_mb,
        **WITHOUT_BUFFER_SYNC,
        init_sync=False,
        process_group=None if ranks is None else ranks.get_group("shard"),
    )
    if dtypes(context.spec).reduce == "bf16":
        wrapped.register_comm_hook(None, bf16_compress_hook)
    return wrapped
