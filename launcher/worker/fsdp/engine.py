"""The engine of PyTorch: FSDP2 or DDP, with tensor parallel, context parallel and pipeline parallel ranks.

:func:`rank_parts` makes the network on the meta device and changes it in this order: 4-bit linears and adapters,
recomputation, compilation, then tensor parallelism and FSDP2. :func:`filled` then allocates and initializes each rank's
own part. DDP wraps an allocated model, so it comes last, in :func:`passes`. Micro-batches run one after the other
(:class:`WholeModelPasses`) or by a pipeline schedule (:class:`pipeline.Pipeline`). Checkpoints name tensors as in the
whole model, whatever the rank's chunks.
"""

import contextlib
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from launcher.backends.fsdp.traits import dtypes, splits
from launcher.base.frozen import dataclass
from launcher.worker import marks
from launcher.worker.engine import Context, PendingSave, StepResult
from launcher.worker.fsdp import pipeline, reading, scaling, sharding
from launcher.worker.fsdp.scaling import Scaler
from launcher.worker.memory.piles import Kept, flat, model_piles
from launcher.worker.model import LanguageModel, adapters, export, initial, network, optimizers, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParts:
    """A rank's part of the model on the meta device (its chunks, in a pipeline), and the mesh of the ranks."""

    models: tuple[LanguageModel, ...]
    ranks: DeviceMesh | None


def build(context: Context) -> "FsdpEngine":
    """Make the model on the meta device, shard it, fill this rank's part, and add the optimizer."""
    return filled(context, rank_parts(context))


def rank_parts(context: Context) -> RankParts:
    """The model on the meta device with adapters, recomputation and sharding as the run says; no memory is taken."""
    spec = context.spec
    shared = _sequence_ranks(context)
    ranks = sharding.mesh(context) if spec.parallel.shard or spec.parallel.pipeline > 1 else None
    networks = list(pipeline.networks(context, attention=shared.attention if shared else None))
    for made in networks:
        adapters.quantise(made, spec, network.DTYPES[dtypes(spec).compute])
        network.fake_quantise(made, spec)
        adapters.inject(made, spec)
        scaling.convert(made, spec)
    if spec.parallel.async_tensor and ranks is not None:
        sharding.exchange_inside_products(ranks)
    network.prepare_blocks(networks, context)
    models = tuple(LanguageModel(made, spec, share=shared.share if shared else None) for made in networks)
    if spec.parallel.shard and ranks is not None:
        for model in models:
            sharding.shard(model, context, ranks)
    return RankParts(models=models, ranks=ranks)


def _sequence_ranks(context: Context) -> Any:
    parallel = context.spec.parallel
    if parallel.context > 1:
        from launcher.worker.fsdp.context_parallel import Ring  # Late, because few runs need it.

        return Ring(context)
    if parallel.ulysses > 1:
        from launcher.worker.model.ulysses import Ulysses, connect  # Late, because only these runs need DeepSpeed.

        connect(context.device)
        return Ulysses(sharding.sequence_mesh(context).get_group())
    return None


def filled(context: Context, parts: RankParts) -> "FsdpEngine":
    """Allocate and fill the parts that :func:`rank_parts` made, and return their engine."""
    spec = context.spec
    offloaded = spec.zero.offload_parameters == "cpu"
    for model in parts.models:
        for module in reversed([*model.modules()]):  # Each once, since blocks may share one; parents last.
            module.to_empty(device="cpu" if offloaded else context.device, recurse=False)
        network.retie(model.network)
        weights.begin(model.network, spec, adapters.access(model.network, spec, context.device))
    return FsdpEngine(context, parts)


SCALE = "loss_scale"  # Name of fp16's loss scale in a checkpoint.


class WholeModelPasses:
    """Passes of a rank that has all layers, one micro-batch at a time; with stages see :class:`pipeline.Pipeline`."""

    group: dist.ProcessGroup | None = None
    copies: Collection[torch.Tensor] = ()

    def __init__(self, context: Context, wrapped: nn.Module, scaler: Scaler) -> None:
        self._context, self._spec, self._wrapped, self._scaler = context, context.spec, wrapped, scaler

    def train(self, micro_batches: Sequence[torch.Tensor]) -> torch.Tensor:
        """Run every micro-batch forward and backward; return the mean loss."""
        memory, total = self._context.memory, torch.zeros((), device=self._context.device)
        for index, tokens in enumerate(micro_batches):
            with self._synchronising(last=index == len(micro_batches) - 1):
                memory.enter("forward")
                with autocast(self._context):
                    loss = self._wrapped(tokens) / len(micro_batches)
                memory.enter("backward")
                scaled: Any = self._scaler.scale(loss)
                scaled.backward()
            total += loss.detach()
        return total

    def evaluate(self, batches: Iterable[torch.Tensor]) -> torch.Tensor:
        """The mean loss over the batches."""
        total, count = torch.zeros((), device=self._context.device), 0
        for tokens in batches:
            with autocast(self._context):
                total += self._wrapped(tokens)
            count += 1
        return total / count

    @contextlib.contextmanager
    def _synchronising(self, *, last: bool) -> Iterator[None]:
        """Reduce gradients in the last micro-batch's backward pass only, or in each (``micro_step_sync``)."""
        if isinstance(self._wrapped, DistributedDataParallel):
            with contextlib.nullcontext() if last else self._wrapped.no_sync():
                yield
            return
        if isinstance(self._wrapped, FSDPModule):
            self._wrapped.set_requires_gradient_sync(last or self._spec.backend.micro_step_sync)
        yield


def autocast(context: Context) -> contextlib.AbstractContextManager[object]:
    """Autocast, if parameters are wider than the compute dtype and FSDP2 does not cast them; else a null context."""
    formats = dtypes(context.spec)
    if not formats.autocast:
        return contextlib.nullcontext()
    return torch.autocast(context.device.type, network.DTYPES[formats.compute])


def passes(context: Context, parts: RankParts, scaler: Scaler) -> WholeModelPasses | pipeline.Pipeline:
    """The passes of a rank's part of the model, wrapped in DDP if nothing is sharded."""
    ranks, stages = parts.ranks, context.spec.parallel.pipeline
    modules: list[nn.Module] = list(parts.models)
    if stages > 1 and not (context.spec.parallel.shard and splits(context.spec)):
        modules = [pipeline.Step(model, functools.partial(autocast, context)) for model in modules]
    if context.world > stages and not context.spec.parallel.shard:
        modules = [sharding.replicate(module, context, ranks) for module in modules]
    if ranks is not None and stages > 1:
        return pipeline.Pipeline(context, parts.models, modules, ranks, scaler)
    return WholeModelPasses(context, modules[0], scaler)


class FsdpEngine:
    """A model trained with FSDP2 or DDP (``launcher.worker.engine.Engine``)."""

    def __init__(self, context: Context, parts: RankParts) -> None:
        self._context, self._spec = context, context.spec
        self._scaler = Scaler(context)
        self._passes = passes(context, parts, self._scaler)
        self._parts = parts.models
        self._networks = [model.network for model in parts.models]
        self._model: nn.Module = parts.models[0] if self._passes.group is None else nn.ModuleList(parts.models)
        self._optimizers = optimizers.optimizers(self._spec, self._model, self._networks)
        self._parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._writers: dist.ProcessGroup | None = None

    def train_step(self, step: int, micro_batches: Sequence[torch.Tensor]) -> StepResult:
        """Run every micro-batch forward and backward, then the optimizer."""
        spec, memory = self._spec, self._context.memory
        if spec.model.dropout or spec.adapter.dropout:  # A resumed run then draws the same masks.
            torch.manual_seed(initial.seed_of(spec.train.seed, "dropout", step, self._context.rank))
        self._model.train()
        network.switch_rounding(self._model, spec, step)
        if spec.data.marked:
            self._divide(marks.share(spec, [marks.count(rows) for rows in micro_batches]))
        total = self._passes.train(micro_batches)  # A rank without a loss adds zero to the sum.
        summed = dist.all_reduce(total, async_op=True)  # Overlaps the optimizer, which does not need it.
        memory.enter("optimizer")
        rate = optimizers.set_rate(self._optimizers, spec, step)
        for each in self._optimizers:
            self._scaler.unscale_(each)
        stages, copies = self._passes.group, self._passes.copies
        norm = optimizers.clip(self._parameters, spec.optimizer.clip, stages=stages, copies=copies)
        if spec.optimizer.stochastic_rounding:  # All replicas, and a resumed run, make the same draws.
            torch.manual_seed(initial.seed_of(spec.train.seed, "rounding", step))
        scale = self._scaler.step_all(self._optimizers, norm)
        scaling.rescale(self._model, spec)
        for each in self._optimizers:
            each.zero_grad(set_to_none=True)
        if summed is not None:
            summed.wait()
        return StepResult(loss=total / self._losses, grad_norm=norm, learning_rate=rate, loss_scale=scale)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[torch.Tensor]) -> torch.Tensor:
        """The mean loss over the batches of all ranks."""
        self._model.eval()
        counts: list[torch.Tensor] = []
        if self._spec.data.marked:  # The number of labels is known only after all batches.
            self._divide(1.0)
            batches = marks.count_each(batches, counts)
        total = self._passes.evaluate(batches)
        if self._spec.backend.kept_over > 1:  # No backward pass frees the gathered parameters that they keep.
            for module in self._model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
        dist.all_reduce(total)
        if counts:
            total /= marks.share(self._spec, counts)
        return total / self._losses

    def _divide(self, divisor: torch.Tensor | float) -> None:
        for part in self._parts:
            part.divisor = divisor

    @property
    def _losses(self) -> int:
        return self._context.world // self._spec.parallel.pipeline

    def save(self, directory: Path) -> PendingSave | None:
        """Write sharded model and optimizer states with ``torch.distributed.checkpoint``."""
        state = self._state()
        if not self._spec.save.asynchronous:
            state_dict_saver.save(state, checkpoint_id=directory)
            return None
        if self._writers is None:  # A separate group: the writers' collectives run during those of training.
            group = dist.new_group(backend="gloo")
            self._writers = group if isinstance(group, dist.ProcessGroup) else None
        pending: Any = state_dict_saver.async_save(state, checkpoint_id=directory, process_group=self._writers)
        assert isinstance(pending, Future), "async_save without a staging thread returns one"
        return pending

    def load(self, directory: Path) -> None:
        """Load the states into this run's own sharding."""
        state, reader = self._state(), reading.SafeReader(directory)
        if SCALE in state and not reader.has(SCALE):  # Saved by a run with another precision.
            del state[SCALE]
        state_dict_loader.load(state, storage_reader=reader, planner=reading.SafePlanner())
        if SCALE in state:
            self._scaler.restore(state[SCALE])
        model, optimizer = get_state_dict(self._model, self._optimizers, options=self._options())
        set_state_dict(
            self._model,
            self._optimizers,
            model_state_dict={name: state["model"][_in_model(name)] for name in model},
            optim_state_dict=_unshared({
                name: state["optimizer"].get(_in_model(name), value) for name, value in optimizer.items()
            }),
            options=self._options(),
        )
        scaling.rescale(self._model, self._spec)

    def export(self, directory: Path) -> None:
        """Write the weights, or only the adapter, for ``transformers`` and ``peft``."""
        export.write(self._networks, self._context, directory, stages=self._passes.group)

    def piles(self) -> Iterator[Kept]:
        """Parameters with buffers, gradients, FSDP2's gathered parameters, and optimizer states."""
        yield from model_piles([self._model])
        sharded = [
            each for module in self._model.modules() if isinstance(module, FSDPModule) for each in _parameters(module)
        ]
        for each in sharded:
            gathered = getattr(each, "_unsharded_param", None)
            yield "gather_buffers", [*each.all_gather_outputs, *([] if gathered is None else [gathered])]
        parts = [each.sharded_param for each in sharded]
        yield "parameters", parts
        yield "gradients", [part.grad for part in parts if part.grad is not None]
        yield "optimizer_states", [tensor for optimizer in self._optimizers for tensor in flat(optimizer.state)]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Parameters, gradients, buffers and optimizer states, as this rank holds them."""
        return (tensor for _, tensors in self.piles() for tensor in tensors)

    def _state(self) -> dict[str, Any]:
        """Tensors by their names in the whole model; optimizer settings come from the run and are not saved."""
        model, optimizer = get_state_dict(self._model, self._optimizers, options=self._options())
        states = {_in_model(name): value for name, value in optimizer.items() if name.startswith("state.")}
        scale = self._scaler.saved()
        parts = {"model": {_in_model(name): value for name, value in model.items()}, "optimizer": states}
        return {**parts, SCALE: scale} if scale else parts

    def _options(self) -> StateDictOptions:
        """Options that leave out a frozen base, which ``model.weights`` or the seed determines."""
        frozen = self._spec.adapter.name != "none"
        return StateDictOptions(ignore_frozen_params=frozen, strict=not frozen, flatten_optimizer_state_dict=True)


def _unshared(states: dict[str, Any]) -> dict[str, Any]:
    """The states, cloned where two names share one: a rank may hold both copies of a tied table, and steps each."""
    seen: set[int] = set()
    found = {}
    for name, value in states.items():
        found[name] = value.clone() if id(value) in seen and isinstance(value, torch.Tensor) else value
        seen.add(id(value))
    return found


def _in_model(name: str) -> str:
    return re.sub(r"(^|\.)\d+\.network\.", r"\1network.", name, count=1)


def _parameters(module: FSDPModule) -> Iterator[Any]:
    """FSDP2's record of each parameter of a module; torch 2.11 has at most one group of them."""
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    for group in [state._fsdp_param_group] if groups is None else groups:
        if group is not None:
            yield from group.fsdp_params
