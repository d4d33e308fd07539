"""``python -m launcher.worker.fsdp --run DIR``: one rank of PyTorch FSDP2 or DDP, started by torchrun."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from launcher.backends.fsdp.dtypes import dtypes
from launcher.worker import (
    adapters,
    context_parallel,
    export,
    initial,
    loop,
    network,
    optimizers,
    recompute,
    sharding,
    weights,
)
from launcher.worker.engine import Context, PendingSave, StepResult
from launcher.worker.entry import main
from launcher.worker.language_model import LanguageModel


def build(context: Context) -> FsdpEngine:
    """Make the model on the meta device, cut it, give every rank its part of the values, and add the optimizer."""
    return filled(context, cut(context))


def cut(context: Context) -> LanguageModel:
    """The model on the meta device, adapted, recomputed and sharded as the run says; it takes no memory yet."""
    spec = context.spec
    ring = context_parallel.Ring(context) if spec.parallel.context > 1 else None
    parameters, compute = (sharding.TORCH_DTYPES[name] for name in (dtypes(spec).parameters, dtypes(spec).compute))
    made = network.network(spec.model, parameters, attention=ring.attention if ring else None)
    adapters.quantise(made, spec, compute)
    adapters.inject(made, spec)
    model = LanguageModel(made, spec.train, share=ring.share if ring else None)
    blocks = network.blocks(made)
    recompute.apply(blocks, spec)
    if spec.train.compile:
        for block in blocks:
            block.forward = torch.compile(block.forward)
    if spec.parallel.shard:
        sharding.shard(model, context)
    return model


def filled(context: Context, model: LanguageModel) -> FsdpEngine:
    """The engine of a model from :func:`cut`, with its memory and its values."""
    spec = context.spec
    offloaded = spec.zero.offload_parameters == "cpu"
    model.to_empty(device="cpu" if offloaded else context.device)
    network.retie(model.network)
    access = adapters.access(model.network, spec, context.device)
    if spec.model.weights is None:
        initial.fill(model.network, spec.train.seed, access)
    else:
        weights.load(model.network, Path(spec.model.weights), spec.train.seed, access)
    alone = context.world == 1 or spec.parallel.shard
    return FsdpEngine(context, model, model if alone else sharding.replicate(model, context))


class FsdpEngine:
    """A model under FSDP2 or DDP in training."""

    def __init__(self, context: Context, model: LanguageModel, wrapped: nn.Module) -> None:
        self._context, self._spec = context, context.spec
        self._model, self._wrapped = model, wrapped
        self._optimizer = optimizers.optimizer(self._spec, model)
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._writers: dist.ProcessGroup | None = None

    def train_step(self, step: int, micro_batches: Sequence[torch.Tensor]) -> StepResult:
        """Forward and backward of every micro-batch, then the optimizer."""
        spec, memory = self._spec, self._context.memory
        if spec.model.dropout or spec.adapter.dropout:  # So that a resumed run draws what this one would have.
            torch.manual_seed(initial.seed_of(spec.train.seed, "dropout", step, self._context.rank))
        self._wrapped.train()
        total = torch.zeros((), device=self._context.device)
        for index, tokens in enumerate(micro_batches):
            with self._synchronising(last=index == len(micro_batches) - 1):
                memory.enter("forward")
                with self._autocast():
                    loss = self._wrapped(tokens) / len(micro_batches)
                memory.enter("backward")
                loss.backward()
            total += loss.detach()
        summed = dist.all_reduce(total, async_op=True)  # Beside the optimizer, which does not need it.
        memory.enter("optimizer")
        rate = optimizers.learning_rate(spec.optimizer, step, spec.train.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        norm = optimizers.clip(self._parameters, spec.optimizer.clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if summed is not None:
            summed.wait()
        return StepResult(loss=total / self._context.world, grad_norm=norm, learning_rate=rate)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[torch.Tensor]) -> torch.Tensor:
        """The mean loss over the batches of all ranks."""
        self._wrapped.eval()
        total, count = torch.zeros((), device=self._context.device), 0
        for tokens in batches:
            with self._autocast():
                total += self._wrapped(tokens)
            count += 1
        dist.all_reduce(total)
        return total / (count * self._context.world)

    def save(self, directory: Path) -> PendingSave | None:
        """Write sharded model and optimizer states by ``torch.distributed.checkpoint``."""
        state = self._state()
        if not self._spec.save.asynchronous:
            state_dict_saver.save(state, checkpoint_id=directory)
            return None
        if self._writers is None:  # A group of their own: the writers' collectives run beside those of training.
            group = dist.new_group(backend="gloo")
            self._writers = group if isinstance(group, dist.ProcessGroup) else None
        pending: Any = state_dict_saver.async_save(state, checkpoint_id=directory, process_group=self._writers)
        if not isinstance(pending, Future):
            raise AssertionError("async_save without a staging thread returns a Future")
        return pending

    def load(self, directory: Path) -> None:
        """Read the states into this run's own sharding."""
        state = self._state()
        state_dict_loader.load(state, checkpoint_id=directory)
        set_state_dict(
            self._model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=self._options(),
        )

    def export(self, directory: Path) -> None:
        """Write the weights, or the adapter alone, for ``transformers`` and ``peft``."""
        export.write(self._model.network, self._context, directory)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Parameters, gradients, buffers and optimizer states, as this rank holds them."""
        for tensor in self._model.parameters():
            yield tensor
            if tensor.grad is not None:
                yield tensor.grad
        yield from self._model.buffers()
        for state in self._optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer, options=self._options())
        return {"model": model, "optimizer": optimizer}

    def _options(self) -> StateDictOptions:
        """A frozen base is not saved: it follows from ``model.weights`` or the seed."""
        frozen = self._spec.adapter.name != "none"
        return StateDictOptions(ignore_frozen_params=frozen, strict=not frozen)

    @contextlib.contextmanager
    def _synchronising(self, *, last: bool) -> Iterator[None]:
        """Whether this micro-batch's backward pass also reduces gradients over the ranks."""
        if isinstance(self._wrapped, DistributedDataParallel):
            with contextlib.nullcontext() if last else self._wrapped.no_sync():
                yield
            return
        if isinstance(self._wrapped, FSDPModule):
            self._wrapped.set_requires_gradient_sync(last or self._spec.backend.micro_step_sync)
        yield

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        formats = dtypes(self._spec)
        if not formats.autocast:
            return contextlib.nullcontext()
        return torch.autocast(self._context.device.type, sharding.TORCH_DTYPES[formats.compute])


if __name__ == "__main__":
    main(lambda spec, directory, _: loop.run(spec, directory, build))
