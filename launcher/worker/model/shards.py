"""Optimizers of torch, torchao and bitsandbytes that support FSDP2's shards only in part, or not at all.

torchao's 8- and 4-bit AdamW works on shards and compiles its step, except on the CPU. bitsandbytes gets the local
tensors of one rank (:class:`_Sharded`), and checkpoints store its states with the parameter's own placements.
Adafactor needs sums over whole rows and columns, so each matrix is gathered for its step (:class:`_Gathering`).
"""

import logging
from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.optim import Adafactor, Optimizer

from launcher.spec import RunSpec

type Groups = list[dict[str, Any]]

_BLOCK = 256  # State values that share one scale (bitsandbytes ``optim/optimizer.py``).


def optimizer(spec: RunSpec, groups: Groups, *, flat: bool = False) -> Optimizer:
    """The optimizer over parameters, sharded or whole, or over ZeRO's ``flat`` tensors.

    bitsandbytes serves flat tensors, since torchao would keep their states unquantised.
    """
    wanted = spec.optimizer
    betas = (wanted.beta1, wanted.beta2)
    if wanted.name == "adafactor":
        return _Gathering(groups, wanted.lr)
    made: Optimizer
    if wanted.name in ("adamw_8bit", "adamw_4bit") and not flat:
        from torchao.optim import AdamW4bit, AdamW8bit

        kind = AdamW4bit if wanted.name == "adamw_4bit" else AdamW8bit
        made = kind(groups, wanted.lr, betas, wanted.epsilon, bf16_stochastic_round=wanted.stochastic_rounding)
        # For bf16 parameters torchao 0.18 declares a state bf16 whose shard is fp32, and then cannot step.
        made._subclass_zeros = lambda *of: kind._subclass_zeros(*of).float()  # type: ignore[attr-defined]
        if groups[0]["params"][0].device.type == "cpu":  # The CPU's compiler takes half a minute.
            made.step = torch.compiler.set_stance("force_eager")(made.step)  # type: ignore[method-assign]
        return made
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # On the CPU it logs advice about inference kernels.
    from bitsandbytes import optim

    known = {"lion": optim.Lion, "adamw_8bit": optim.AdamW8bit, "paged_adamw_8bit": optim.PagedAdamW8bit}
    base = known[wanted.name]
    epsilon = () if wanted.name == "lion" else (wanted.epsilon,)
    made = type(base.__name__, (_BitsOfGroup if flat else _Sharded, base), {})(groups, wanted.lr, betas, *epsilon)
    return made


class _BitsOfGroup:
    """Mixin for a bitsandbytes optimizer: states have 32 bits except in groups with their own ``optim_bits``."""

    def get_config(self, group_index: int, index: int, group: dict[str, Any]) -> dict[str, Any]:
        """The settings of one tensor's step."""
        settings: dict[str, Any] = super().get_config(group_index, index, group)  # type: ignore[misc]
        return {**settings, "optim_bits": group.get("optim_bits", 32)}


class _Gathering(Adafactor):
    """Adafactor that gathers sharded parameters one at a time: torch 2.15 refuses its operations on shards."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Step each parameter in turn."""
        groups = self.param_groups
        for group in groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                whole = _gathered(parameter)
                whole.grad = _gathered(parameter.grad)
                if state := self.state.pop(parameter, None):
                    self.state[whole] = state
                self.param_groups = [{**group, "params": [whole]}]
                super().step()  # type: ignore[no-untyped-call]
                self.state[parameter] = self.state.pop(whole)
                if whole is not parameter:
                    parameter.copy_(whole.redistribute(parameter.device_mesh, parameter.placements))
        self.param_groups = groups


def _gathered(tensor: torch.Tensor) -> Any:
    if not isinstance(tensor, DTensor):
        return tensor
    return tensor.redistribute(placements=[Replicate()] * tensor.device_mesh.ndim)


class _Sharded:
    """Mixin for a bitsandbytes optimizer: it steps a sharded parameter by stepping this rank's shard."""

    state: Any
    param_groups: Groups
    _cpu_paged_warned = True  # The check already says that the CPU has no paged optimizer.

    def init_state(self, group: Any, parameter: torch.Tensor, group_index: int, index: int) -> None:
        """Create the states of a parameter's shard."""
        shard = _local(parameter)
        super().init_state(group, shard, group_index, index)  # type: ignore[misc]
        self.state[parameter] = self.state.pop(shard)

    def update_step(self, group: Any, parameter: torch.Tensor, group_index: int, index: int) -> None:
        """Step a parameter's shard."""
        if not isinstance(parameter, DTensor):
            super().update_step(group, parameter, group_index, index)  # type: ignore[misc]
            return
        shard = _local(parameter)
        shard.grad = None if parameter.grad is None else _local(parameter.grad)
        self.state[shard] = self.state[parameter]
        super().update_step(group, shard, group_index, index)  # type: ignore[misc]
        del self.state[shard]

    def state_dict(self) -> dict[str, Any]:
        """The states for a checkpoint: a sharded parameter's states are DTensors."""
        packed: dict[str, Any] = Optimizer.state_dict(self)  # type: ignore[arg-type]
        for parameter, number in zip(self._members(), _numbers(packed), strict=True):
            if number in packed["state"]:
                state = packed["state"][number]
                packed["state"][number] = {name: _as_dtensor(name, value, parameter) for name, value in state.items()}
        return packed

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the states from :meth:`state_dict`; the settings stay those of this run."""
        for parameter, number in zip(self._members(), _numbers(state_dict), strict=True):
            own = self.state[parameter]
            for name, value in state_dict["state"][number].items():
                if not isinstance(own[name], torch.Tensor):
                    own[name] = value
                else:
                    own[name].copy_(_local(value)[: own[name].shape[0]])

    def _members(self) -> list[torch.Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


def _numbers(packed: Mapping[str, Any]) -> list[Any]:
    return [number for group in packed["param_groups"] for number in group["params"]]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, DTensor):
        return tensor
    local: torch.Tensor = tensor.to_local()
    return local.detach()


def _as_dtensor(name: str, value: Any, parameter: torch.Tensor) -> Any:
    """The state of this rank's shard as a DTensor; scales are padded to the number that the first rank has."""
    if not isinstance(parameter, DTensor) or not isinstance(value, torch.Tensor) or name.startswith("qmap"):
        return value
    mesh, placements = parameter.device_mesh, parameter.placements
    if not name.startswith("absmax"):
        shape, stride = parameter.shape, parameter.stride()
        return DTensor.from_local(value, mesh, placements, run_check=False, shape=shape, stride=stride)
    cuts = [getattr(place, "dim", None) for place in placements]
    rows = [-(-size // prod(mesh.size(axis) for axis, cut in enumerate(cuts) if cut == dimension))
            for dimension, size in enumerate(parameter.shape)]  # fmt: skip
    filled = value.new_zeros(-(-prod(rows) // _BLOCK))
    filled[: len(value)] = value
    return DTensor.from_local(filled, mesh, [Replicate() if cut is None else Shard(0) for cut in cuts], run_check=False)
