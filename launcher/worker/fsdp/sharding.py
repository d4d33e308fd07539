"""Sharding of the model over the ranks: FSDP2 or HSDP, each with tensor parallelism inside, or DDP."""

import inspect
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from launcher.backends.fsdp.traits import dtypes, reshards
from launcher.spec import RunSpec
from launcher.worker.engine import Context
from launcher.worker.model import LanguageModel, network

_NEW = "forward_sync_buffers"  # DDP's name for ``broadcast_buffers`` since torch 2.13.
_WITHOUT_BUFFER_SYNC: dict[str, Any] = {
    _NEW if _NEW in inspect.signature(DistributedDataParallel).parameters else "broadcast_buffers": False
}


def mesh(context: Context) -> DeviceMesh:
    """The mesh of the ranks: stages outermost, tensor parallel ranks innermost; axes of size 1 are left out."""
    parallel = context.spec.parallel
    axes = {
        "pipeline": parallel.pipeline,
        "replicate": parallel.replicate,
        "shard": context.world // (parallel.pipeline * parallel.replicate * parallel.tensor),
        "tensor": parallel.tensor,
    }
    used = {name: size for name, size in axes.items() if size > 1 or name == "shard"}
    return init_device_mesh(context.device.type, tuple(used.values()), mesh_dim_names=tuple(used))


def sequence_mesh(context: Context) -> DeviceMesh:
    """The mesh of the ranks that share a sequence; between neighbours in it are the tensor parallel ranks."""
    parallel = context.spec.parallel
    degrees = (parallel.context * parallel.ulysses, parallel.tensor)
    sizes = (context.world // (degrees[0] * degrees[1]), *degrees)
    return init_device_mesh(context.device.type, sizes, mesh_dim_names=("data", "sequence", "tensor"))["sequence"]


def exchange_inside_products(ranks: DeviceMesh) -> None:
    """Let compiled blocks overlap tensor parallel communication with matrix products (``parallel.async_tensor``)."""
    from torch._inductor import config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    config._micro_pipeline_tp = True
    enable_symm_mem_for_group(ranks["tensor"].get_group().group_name)


def shard(model: LanguageModel, context: Context, ranks: DeviceMesh) -> None:
    """Apply tensor parallelism and FSDP2 to a model on the meta device, in place."""
    spec = context.spec
    names = ranks.mesh_dim_names or ()
    if spec.parallel.tensor > 1:
        cut(model.network, ranks["tensor"], sequence=spec.parallel.sequence)
    data = ranks["replicate", "shard"] if "replicate" in names else ranks["shard"]
    settings: dict[str, Any] = {"mesh": data, "mp_policy": _precision(spec), "offload_policy": _offload(context)}
    if spec.parallel.expert > 1:
        from launcher.worker.fsdp import experts  # Late: older versions of transformers do not have its functions.

        experts.shard(model.network, context, {**settings, "reshard_after_forward": reshards(spec)})
    blocks = network.blocks(model.network)
    # A module that blocks share belongs to the root and is gathered once; FSDP must find it outside the blocks.
    model.shared = nn.ModuleList(network.shared_modules(blocks))
    several = set(model.shared.parameters())
    for block in blocks:
        fully_shard(block, reshard_after_forward=reshards(spec), ignored_params=several, **settings)
    fully_shard(model, **settings)  # The root stays gathered after forward: backward begins with it.
    del model.shared


def _precision(spec: RunSpec) -> MixedPrecisionPolicy:
    formats = dtypes(spec)
    return MixedPrecisionPolicy(
        param_dtype=None if formats.compute == formats.parameters else network.DTYPES[formats.compute],
        reduce_dtype=network.DTYPES[formats.reduce],
    )


def _offload(context: Context) -> OffloadPolicy:
    if context.spec.zero.offload_parameters == "none":
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=context.device.type == "cuda")


def replicate(model: nn.Module, context: Context, ranks: DeviceMesh | None) -> DistributedDataParallel:
    """A model wrapped in DDP; all ranks drew the same values, so no initial broadcast is needed."""
    backend = context.spec.backend
    wrapped = DistributedDataParallel(
        model,
        device_ids=None if context.device.type == "cpu" else [context.device],
        gradient_as_bucket_view=backend.bucket_view,
        bucket_cap_mb=backend.bucket_cap_mb,
        **_WITHOUT_BUFFER_SYNC,
        init_sync=False,
        process_group=None if ranks is None else ranks.get_group("shard"),
    )
    if dtypes(context.spec).reduce == "bf16":
        wrapped.register_comm_hook(None, bf16_compress_hook)
    return wrapped


class Replicated(ParallelStyle):
    """The parallel style of a module that every rank computes whole.

    Its parameters still become DTensors, since gradient norms of different meshes cannot be combined
    (``clip_grad_norm_`` fails with "All operands in aten.stack.default must have the same mesh").
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, input_fn=self._enter, output_fn=self._leave)  # type: ignore[arg-type]

    @staticmethod
    def _enter(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        if isinstance(inputs[0], DTensor):
            return inputs
        return (DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False), *inputs[1:])

    @staticmethod
    def _leave(module: nn.Module, output: Any, mesh: DeviceMesh) -> torch.Tensor:
        local: torch.Tensor = output.to_local()
        return local


def cut(made: Any, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Shard a Llama, Qwen2 or Qwen3 network on the meta device over tensor parallel ranks (arXiv:1909.08053).

    With ``sequence`` residuals and norms are split along the sequence between the matrix products.
    """
    residual = Shard(1) if sequence else Replicate()
    frozen = [name for name, parameter in made.named_parameters() if not parameter.requires_grad]
    for block in network.blocks(made):
        parallelize_module(block, mesh, _adapted(block, _block_plan(block, residual), residual))
    around: dict[nn.Module, ParallelStyle] = {
        made.base_model.embed_tokens: RowwiseParallel(input_layouts=Replicate(), output_layouts=residual),
        made.base_model.norm: _norm(residual),
        made.lm_head: ColwiseParallel(input_layouts=residual, output_layouts=Replicate()),
    }
    for outside, style in around.items():
        for module in _copies(outside):
            parallelize_module(module, mesh, style)
    network.retie(made)
    for name in frozen:  # ``distribute_module`` creates new parameters, which require gradients.
        made.get_parameter(name).requires_grad_(False)


def _copies(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, network.Absent):
        return []
    copies = getattr(module, "modules_to_save", None)
    return [module] if copies is None else [*copies.children(), module.original_module]  # type: ignore[list-item]


def _adapted(block: nn.Module, plan: dict[str, ParallelStyle], residual: Shard | Replicate) -> dict[str, ParallelStyle]:
    """The plan of a block whose linears ``peft`` may have wrapped.

    The low-rank matrix on the sharded side of a linear is sharded the same way; the other is whole on every rank.
    """
    found: dict[str, ParallelStyle] = {}
    for path, style in plan.items():
        if not hasattr(block.get_submodule(path), "base_layer"):
            found[path] = style
            continue
        found[f"{path}.base_layer"] = style
        first: ParallelStyle = Replicated()
        second = style
        if isinstance(style, RowwiseParallel):
            first = RowwiseParallel(output_layouts=residual)
            second = SequenceParallel(use_local_output=True) if isinstance(residual, Shard) else Replicated()
        found |= {f"{path}.lora_A.default": first, f"{path}.lora_B.default": second}
    return found


def _norm(residual: Shard | Replicate) -> ParallelStyle:
    return SequenceParallel() if isinstance(residual, Shard) else Replicated()


def _block_plan(block: nn.Module, residual: Shard | Replicate) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "input_layernorm": _norm(residual),
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": residual}, desired_input_kwarg_layouts={"hidden_states": Replicate()}
        ),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=residual),
        "post_attention_layernorm": _norm(residual),
        "mlp": PrepareModuleInput(input_layouts=(residual,), desired_input_layouts=(Replicate(),)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=residual),
    }
    if hasattr(block.self_attn, "q_norm"):  # Sharded by heads, dimension 2 of (batch, sequence, heads, _).
        plan |= {"self_attn.q_norm": SequenceParallel(sequence_dim=2, use_local_output=True)}
        plan |= {"self_attn.k_norm": SequenceParallel(sequence_dim=2, use_local_output=True)}
    return plan
