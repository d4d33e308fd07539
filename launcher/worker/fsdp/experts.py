"""Expert parallelism: data parallel ranks divide the experts of a layer and exchange tokens.

The exchange is ``AllToAllEP`` of ``transformers.distributed.expert_parallel``: one all-to-all brings every copy of a
token to the rank of its expert, another one brings the result back. Each rank holds whole experts (the first dimension
of their tensors); FSDP2 shards them over the ranks that hold the same ones, and all other parameters over all ranks.
"""

from dataclasses import replace
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard
from transformers.distributed.expert_parallel import apply_expert_parallelism
from transformers.distributed.parallel_utils import replace_layer_number_by_wildcard

from launcher.worker.engine import Context

_DISPATCH = "ep_dispatch_experts"


def shard(made: Any, context: Context, settings: dict[str, Any]) -> None:
    """Divide the experts of a network on the meta device over ranks, and shard each rank's own.

    ``settings`` are those of ``fully_shard`` for a block. An expert's gradient is the sum over all tokens routed to it,
    from any rank, so it is divided by the number of all ranks, like those of the other parameters.
    """
    ranks = mesh(context)
    plan = _plan(made)
    alone = init_device_mesh(context.device.type, (context.world, 1), mesh_dim_names=("other", "alone"))["alone"]
    apply_expert_parallelism(made.base_model, ranks["expert"], alone, plan, "all_to_all")
    # Routing weights, an input of the experts, keep their dtype, as they do when FSDP2 wraps only the block.
    precision = replace(settings["mp_policy"], cast_forward_inputs=False)
    names = ranks.mesh_dim_names or ()
    same = ranks["replicate", "shard"] if "replicate" in names else ranks["shard"]
    for experts in (made.base_model.get_submodule(name) for name, style in plan.items() if style == _DISPATCH):
        own = {"mesh": same, "mp_policy": precision, "shard_placement_fn": _placement(ranks["shard"].size())}
        fully_shard(experts, **{**settings, **own})
        assert isinstance(experts, FSDPModule)
        experts.set_gradient_divide_factor(float(context.spec.shard_degree * context.spec.parallel.replicate))
        # A factor other than the group's size uses PREMUL_SUM, which gloo lacks; for one rank FSDP2 divides by itself.
        experts.set_force_sum_reduction_for_comms(ranks["shard"].size() > 1)


def mesh(context: Context) -> DeviceMesh:
    """The mesh for experts: ranks that exchange tokens are neighbours."""
    parallel = context.spec.parallel
    axes = {
        "replicate": parallel.replicate,
        "shard": context.world // (parallel.replicate * parallel.expert),
        "expert": parallel.expert,
    }
    used = {name: size for name, size in axes.items() if size > 1 or name in ("shard", "expert")}
    ranks = init_device_mesh(context.device.type, tuple(used.values()), mesh_dim_names=tuple(used))
    ranks["shard", "expert"]._flatten("experts")  # Lets one collective sum a norm over both.
    return ranks


def _plan(made: Any) -> dict[str, str]:
    """The style that transformers gives each module and parameter of the base model under expert parallelism."""
    base, rules = made.base_model, made.config.base_model_ep_plan
    names = [name for name, _ in (*base.named_parameters(), *base.named_modules())]
    found = {name: rules.get(replace_layer_number_by_wildcard(name)) for name in names}
    return {name: style for name, style in found.items() if style is not None}


def _placement(ranks: int) -> Any:
    def placement(parameter: nn.Parameter) -> Shard:
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        return Shard(0 if local.shape[0] % ranks == 0 else 1)

    return placement
