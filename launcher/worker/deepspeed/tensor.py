"""Tensor parallelism by DeepSpeed's AutoTP, cut on the meta device, so that no rank ever holds a whole weight.

``deepspeed.initialize`` would cut a model whose weights are in memory on every rank. Here AutoTP's own classes cut the
network before its weights have memory; the notes that they leave on a parameter (the dimension that is cut, the sizes
of the parts) are handed on to the parameter with memory that takes its place, and say later where a rank's part lies
in the whole, for first values, for loading and for export.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from deepspeed.checkpoint import constants
from deepspeed.checkpoint.constants import UNIVERSAL_CHECKPOINT_INFO
from deepspeed.module_inject import set_autotp_mode
from deepspeed.module_inject.auto_tp import AutoTP
from deepspeed.module_inject.layers import DS_IS_REPLACED_MODULE, DS_TENSOR_MODEL_PARALLEL
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.utils import groups
from torch import nn

from launcher.worker.model import initial

AUTOTP_NOTE: str = getattr(constants, "DS_AUTOTP_UC_META", "ds_autotp_universal_checkpoint_meta")
"""AutoTP's note on a parameter that it has split; no parameter has one before DeepSpeed 0.18.9."""

_NOTES = (AUTOTP_NOTE, DS_IS_REPLACED_MODULE, DS_TENSOR_MODEL_PARALLEL, "gather_params", "_tp_partition")
"""Attributes of a parameter, ``TensorParallel_Layer.config_tp_params`` (module_inject/layers.py)."""


def cut(made: Any, settings: Mapping[str, Any]) -> AutoTP:
    """Replace the layers that the plan names by their tensor parallel ones, as ``_apply_autotp_partitioning`` does.

    (DeepSpeed ``runtime/engine.py``, which would cut whole weights that every rank has in memory.)

    Args:
        made: The network on the meta device.
        settings: The block ``tensor_parallel`` of ``ds_config.json``.
    """
    degree = settings["autotp_size"]
    set_autotp_mode(training=True)
    groups._init_tp_mesh_device(tensor_model_parallel_size=degree)
    cutter = AutoTP(
        module=made,
        all_reduce_linears=(),
        prefix="",
        state_dict=None,
        linear_layer_setting=(nn.Linear, nn.Embedding),
        orig_layer_impl=None,
        partition_config=TPTrainingConfig(**settings).get_partition_config_object(),
        model_config=made.config,
        training_mode=True,
    )
    cutter.set_tensor_parallel_config(degree, groups.get_tensor_model_parallel_group())
    cutter.update_linear_policies()
    cutter._replace_module(made)
    return cutter


def hand_on(parameter: torch.Tensor, fresh: torch.Tensor) -> None:
    """Copy AutoTP's notes on a parameter's split to the parameter that takes its place."""
    for name in _NOTES:
        if hasattr(parameter, name):
            setattr(fresh, name, getattr(parameter, name))


def finish(model: Any, cutter: AutoTP) -> None:
    """Add the hooks of parameters with memory, and tell DeepSpeed that the model is split already."""
    cutter.register_replicated_grad_hooks(model)
    setattr(model, UNIVERSAL_CHECKPOINT_INFO, autotp_layout(model))
    model.ds_autotp_parsed = True


def part(parameter: torch.Tensor, tensor: torch.Tensor) -> initial.Local:
    """A rank's tensor with its place in the whole parameter."""
    layout = _layout(parameter)
    if layout is None:
        return initial.Local(tensor, tuple(tensor.shape), (0,) * tensor.dim())
    offset = [0] * tensor.dim()
    offset[layout["partition_dim"]] = sum(layout["partition_sizes"][: groups.get_tensor_model_parallel_rank()])
    return initial.Local(tensor, layout["logical_shape"], tuple(offset))


def whole(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The parameter put together from the tensor parallel ranks; called by all of them together."""
    layout = _layout(parameter)
    if layout is None:
        return tensor
    layer: Any = parameter.gather_params.__self__  # type: ignore[attr-defined]  # AutoTP's layer, which hangs it there.
    together: torch.Tensor = layer._all_gather_shards(tensor, layout["partition_sizes"], layout["partition_dim"])
    return together


def elements(parameter: torch.Tensor) -> int:
    """Elements of the whole parameter; ZeRO 3 leaves an empty tensor in its place and notes its size."""
    layout = _layout(parameter)
    if layout is not None:
        return torch.Size(layout["logical_shape"]).numel()
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _layout(parameter: torch.Tensor) -> dict[str, Any] | None:
    """AutoTP's note on how it has split a parameter; None where it is whole."""
    found: dict[str, Any] | None = getattr(parameter, AUTOTP_NOTE, None)
    return None if found is None or found["replicated"] else found


def autotp_layout(model: Any) -> Any:
    """AutoTP's split of all parameters, as universal checkpoints keep it; DeepSpeed from 0.18.9."""
    from deepspeed.module_inject.layers import collect_autotp_universal_checkpoint_info

    return collect_autotp_universal_checkpoint_info(model)
