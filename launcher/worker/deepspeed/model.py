"""The network for DeepSpeed: made on the meta device, sharded for this rank, then allocated parameter by parameter.

ZeRO 3 partitions each parameter as soon as it is allocated, so that no rank ever holds the whole model. AutoTP's own
classes shard the network before it is allocated; their attributes of a parameter are copied to the allocated one, and
tell where a rank's part is in the whole, for initialization, loading and export.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.checkpoint.constants import DS_AUTOTP_UC_META, UNIVERSAL_CHECKPOINT_INFO
from deepspeed.module_inject import layers, set_autotp_mode
from deepspeed.module_inject.auto_tp import AutoTP
from deepspeed.module_inject.layers import DS_IS_REPLACED_MODULE, DS_TENSOR_MODEL_PARALLEL
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
from deepspeed.runtime.zero.linear import zero3_linear_wrap
from deepspeed.utils import groups
from torch import nn

from launcher.base.files import JsonObject
from launcher.estimate.rank.stages import cut_of, rank_layers
from launcher.spec import RunSpec
from launcher.worker.engine import Context
from launcher.worker.model import LanguageModel, adapters, initial, network, optimizers, weights
from launcher.worker.model.ulysses import Ulysses

_TABLE = "embedding"
_LINEAR = nn.functional.linear
_NOTES = (DS_AUTOTP_UC_META, DS_IS_REPLACED_MODULE, DS_TENSOR_MODEL_PARALLEL, "gather_params", "_tp_partition")
"""Attributes that AutoTP sets on a parameter (``TensorParallel_Layer.config_tp_params``, module_inject/layers.py)."""


def build(
    context: Context, config: JsonObject, shared: Ulysses | None = None
) -> tuple[LanguageModel, list[dict[str, Any]]]:
    """Make the initialized model, and parameter groups for the optimizer.

    ``config`` is the content of ``ds_config.json``, ``shared`` the ranks that share sequences with this one.
    """
    spec = context.spec
    _release_weights(spec)
    made = network.network(spec.model, network.DTYPES[spec.precision.compute], shared.attention if shared else None)
    network.use_kernels(made, spec)
    if spec.parallel.pipeline > 1:
        _cut_to_stage(made, context)
    adapters.quantise(made, spec, network.DTYPES[spec.precision.compute])
    adapters.inject(made, spec)
    cutter = _cut_by_plan(made, config["tensor_parallel"]) if spec.parallel.tensor > 1 else None
    stepped = optimizers.parameter_groups(made, spec)
    real = _with_memory(made, context.device, _partitioner(config) if spec.zero.stage == 3 else None)
    for group in stepped:
        group["params"] = [real[id(parameter)] for parameter in group["params"]]
    weights.begin(made, spec, adapters.access(made, spec, context.device, otherwise=opened))
    model = LanguageModel(made, spec, share=shared.share if shared else None)
    if cutter is not None:
        _finish(model, cutter)
    return model, stepped


def _release_weights(spec: RunSpec) -> None:
    """Let ZeRO 3 free a linear's weight after its call, as inside ``zero.Init``: torch's linear keeps a view of it.

    Not for frozen weights, for which DeepSpeed's function would keep inputs that no gradient needs.
    """
    freed = spec.zero.stage == 3 and spec.adapter.name == "none"
    released: Any = _released_linear if spec.checkpointing.mode == "selective" else zero3_linear_wrap
    nn.functional.linear = released if freed else _LINEAR


def _released_linear(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """DeepSpeed's linear without its in-place bias (``runtime/zero/linear.py``), which recomputation would repeat."""
    product: torch.Tensor = zero3_linear_wrap(values, weight)
    return product if bias is None else product + bias


@contextlib.contextmanager
def opened(parameter: torch.Tensor) -> Iterator[initial.Local | None]:
    """Open a rank's tensor parallel part of a parameter; with ZeRO 3 the first data parallel rank fills it for all."""
    if not hasattr(parameter, "ds_id"):
        yield _part(parameter, parameter)
        return
    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
        first = deepspeed.comm.get_rank(vars(parameter)["ds_process_group"]) == 0
        yield _part(parameter, parameter) if first else None


@contextlib.contextmanager
def gathered(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    """Gather a whole parameter on all ranks, to be read."""
    with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
        yield _whole(parameter, parameter)


def _with_memory(
    made: nn.Module, device: torch.device, partition: Callable[[nn.Parameter], None] | None
) -> dict[int, nn.Parameter]:
    real: dict[int, nn.Parameter] = {}
    for module in made.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in real:
                fresh = nn.Parameter(torch.empty_like(parameter, device=device), parameter.requires_grad)
                for note in _NOTES:
                    if hasattr(parameter, note):
                        setattr(fresh, note, getattr(parameter, note))
                real[id(parameter)] = fresh
                if partition is not None:
                    partition(fresh)
            module.register_parameter(name, real[id(parameter)])
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device=device))
    return real


def _partitioner(config: JsonObject) -> Callable[[nn.Parameter], None]:
    """Return a function that partitions a parameter as ``zero.Init`` does; one ``Init``, which owns NVMe's buffers."""
    among = groups.get_data_parallel_group() if "tensor_parallel" in config else None
    made = deepspeed.zero.Init(config_dict_or_path=config, data_parallel_group=among)
    return lambda parameter: made._convert_to_zero_parameters([parameter])


class Stage(nn.Module):
    """One stage's layers: from tokens, or the previous stage's hidden states, to hidden states."""

    def __init__(self, model: LanguageModel, *, first: bool) -> None:
        super().__init__()
        self.model, self._first = model, first

    def forward(self, entering: torch.Tensor) -> torch.Tensor:
        """The stage's output states."""
        if self._first:
            return self.model.states(entering)
        batch, length = entering.shape[:2]
        tokens = entering.new_empty((batch, length + 1), dtype=torch.long)  # Only their number matters.
        return self.model.states(tokens, entering)


class Stages(PipelineModule):  # type: ignore[misc]  # DeepSpeed has no types.
    """This rank's stage; a token table tied between the first and last stage is tied as by ``TiedLayerSpec``."""

    def __init__(self, model: LanguageModel, context: Context) -> None:
        self._ties = context.spec.model.tie_word_embeddings
        stage, count = context.spec.stage_of(context.rank), context.spec.parallel.pipeline
        layers = [Stage(model, first=stage == 0)] * count  # Each rank builds only its own.
        super().__init__(layers=layers, num_stages=count, loss_fn=model.loss, partition_method="uniform")
        for parameter in self.parameters():
            # Else, without ZeRO, clip_grad_norm_ (runtime/utils.py) counts only the first stage's gradients.
            parameter.model_parallel = not parameter.ds_pipe_replicated

    @property
    def model(self) -> LanguageModel:
        """This rank's part of the model."""
        part: LanguageModel = self.forward_funcs[0].model
        return part

    def _index_tied_modules(self) -> dict[str, Any]:
        """The groups of first and last stages and this rank's table, in the format of ``PipelineModule``."""
        if not self._ties:
            return {}
        found: dict[str, Any] = {}
        for data in range(self._grid.data_parallel_size):
            ranks = [self._grid.stage_to_global(stage_id=stage, data=data) for stage in (0, self.num_stages - 1)]
            group = dist.new_group(ranks)
            if self.global_rank in ranks:
                table = self.model.network.get_input_embeddings()
                self.tied_modules[_TABLE] = table
                table.weight.ds_pipe_replicated = self.global_rank != ranks[0]
                found[_TABLE] = {"ranks": ranks, "group": group, "weight_attr": ["weight"], "module": table}
        return found


def _cut_to_stage(made: Any, context: Context) -> None:
    spec, stage = context.spec, context.spec.stage_of(context.rank)  # The order of ``PipeDataParallelTopology``.
    network.keep_chunk(
        made, rank_layers(cut_of(spec), stage), first=stage == 0, last=stage == spec.parallel.pipeline - 1
    )


def _cut_by_plan(made: Any, settings: Mapping[str, Any]) -> AutoTP:
    """Shard layers on the meta device as ``_apply_autotp_partitioning`` (``runtime/engine.py``) shards real ones."""
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


def _finish(model: Any, cutter: AutoTP) -> None:
    cutter.register_replicated_grad_hooks(model)
    # Universal checkpoints store how each parameter is split.
    setattr(model, UNIVERSAL_CHECKPOINT_INFO, layers.collect_autotp_universal_checkpoint_info(model))
    model.ds_autotp_parsed = True


def _part(parameter: torch.Tensor, tensor: torch.Tensor) -> initial.Local:
    layout = _layout(parameter)
    if layout is None:
        return initial.Local(tensor, tuple(tensor.shape), (0,) * tensor.dim())
    offset = [0] * tensor.dim()
    offset[layout["partition_dim"]] = sum(layout["partition_sizes"][: groups.get_tensor_model_parallel_rank()])
    return initial.Local(tensor, layout["logical_shape"], tuple(offset))


def _whole(parameter: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    layout = _layout(parameter)
    if layout is None:
        return tensor
    layer: Any = parameter.gather_params.__self__  # type: ignore[attr-defined]  # A bound method of AutoTP's layer.
    together: torch.Tensor = layer._all_gather_shards(tensor, layout["partition_sizes"], layout["partition_dim"])
    return together


def elements(parameter: torch.Tensor) -> int:
    """Elements of the whole parameter; ZeRO 3 leaves an empty tensor and stores the size in ``ds_numel``."""
    layout = _layout(parameter)
    if layout is not None:
        return torch.Size(layout["logical_shape"]).numel()
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _layout(parameter: torch.Tensor) -> dict[str, Any] | None:
    found: dict[str, Any] | None = getattr(parameter, DS_AUTOTP_UC_META, None)
    return None if found is None or found["replicated"] else found
