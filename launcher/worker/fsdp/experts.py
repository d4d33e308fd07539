"""Expert parallelism: ranks that see different tokens share the experts of a layer and send each other theirs.

The exchange is ``AllToAllEP`` of ``transformers.distributed.expert_parallel``: one all-to-all brings every copy of a
token to the rank of its expert, another one the result back. Each rank holds whole experts, the first dimension of
their tensors; FSDP2 shards them over the ranks that hold the same ones, and all else over all ranks.
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
    """Cut the experts of a network on the meta device and shard each rank's own.

    ``settings`` are those of ``fully_shard`` for a block. A gradient is the sum over all tokens that met an expert,
    from whichever rank, so it is divided by the number of all ranks, as those of the other parameters are.
    """
    ranks = mesh(context)
    plan = _plan(made)
    alone = init_device_mesh(context.device.type, (context.world, 1), mesh_dim_names=("other", "alone"))["alone"]
    apply_expert_parallelism(made.base_model, ranks["expert"], alone, plan, "all_to_all")
    # The router's weights stay in its own format, as where FSDP2 has the block alone.
    precision = replace(settings["mp_policy"], cast_forward_inputs=False)
    names = ranks.mesh_dim_names or ()
    same = ranks["replicate", "shard"] if "replicate" in names else ranks["shard"]
    for experts in (made.base_model.get_submodule(name) for name, style in plan.items() if style == _DISPATCH):
        own = {"mesh": same, "mp_policy": precision, "shard_placement_fn": _placement(ranks["shard"].size())}
        fully_shard(experts, **{**settings, **own})
        assert isinstance(experts, FSDPModule)
        experts.set_gradient_divide_factor(float(context.spec.shard_degree * context.spec.parallel.replicate))
        # A factor other than the group's size is PREMUL_SUM, which gloo does not have; of one rank FSDP2 divides alone.
        experts.set_force_sum_reduction_for_comms(ranks["shard"].size() > 1)


def mesh(context: Context) -> DeviceMesh:
    """The ranks as experts see them: those of one exchange are neighbours."""
    parallel = context.spec.parallel
    axes = {
        "replicate": parallel.replicate,
        "shard": context.world // (parallel.replicate * parallel.expert),
        "expert": parallel.expert,
    }
    used = {name: size for name, size in axes.items() if size > 1 or name in ("shard", "expert")}
    ranks = init_device_mesh(context.device.type, tuple(used.values()), mesh_dim_names=tuple(used))
    ranks["shard", "expert"]._flatten("experts")  # So that a norm is summed over both by one collective.
    return ranks


def _plan(made: Any) -> dict[str, str]:
    """What transformers says of each module and parameter of the base model that expert parallelism concerns."""
    base, rules = made.base_model, made.config.base_model_ep_plan
    names = [name for name, _ in (*base.named_parameters(), *base.named_modules())]
    found = {name: rules.get(replace_layer_number_by_wildcard(name)) for name in names}
    return {name: style for name, style in found.items() if style is not None}


def _placement(ranks: int) -> Any:
    def placement(parameter: nn.Parameter) -> Shard:
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        return Shard(0 if local.shape[0] % ranks == 0 else 1)

    return placement
