"""Follows Megatron's training loop from outside: the run's metrics, memory and checkpoints in the files of every run.

Megatron's functions are called with their own arguments and their answers are handed on; nothing of the loop is done
here a second time.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from megatron.core.optimizer_param_scheduler import get_canonical_lr_for_logging
from megatron.core.transformer.transformer_layer import TransformerLayer
from megatron.training import get_args, training
from torch import nn

from launcher.worker import loop, metrics
from launcher.worker.data import Batches
from launcher.worker.engine import Context, StepResult
from launcher.worker.megatron.checkpoints import Checkpoints
from launcher.worker.megatron.data import LOSS, forward_step
from launcher.worker.memory import live_bytes
from launcher.worker.memory.piles import Kept, flat, of_model
from launcher.worker.metrics import Metrics
from launcher.worker.watch import MemoryLog

_MASTERS = ("shard_fp32_from_float16_groups", "fp32_from_float16_groups")
_BUFFERS = ("buffers", "expert_parallel_buffers")

type Call = Callable[..., Any]


class Follower:
    """One run.

    Attributes:
        step: The last step done.
        metrics: Made once it is known at which step the run begins.
    """

    _FOLLOWED = (
        "setup_model_and_optimizer",
        "train_step",
        "training_log",
        "evaluate",
        "evaluate_and_print_results",
        "load_checkpoint",
        "save_checkpoint_and_time",
        "save_checkpoint",
        "maybe_finalize_async_save",
    )

    def __init__(self, context: Context, batches: Batches) -> None:
        self._context, self._spec = context, context.spec
        self._checkpoints = Checkpoints(context, batches)
        self.step = self.restored = 0
        self.metrics: Metrics | None = None
        self._memory: MemoryLog | None = None
        self._has_evaluated = False
        self._rate = 0.0
        self._last: StepResult | None = None
        self._held_out_loss: torch.Tensor | None = None

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Put each method of this class around the function of its name in ``megatron.training.training``."""
        originals = {name: getattr(training, name) for name in self._FOLLOWED}
        for name, original in originals.items():
            setattr(training, name, functools.partial(getattr(self, name), original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(training, name, original)

    def forward_step(self, batches: Any, model: Any) -> Any:
        """A micro-batch, with the phases around it."""
        self._context.memory.enter("forward")
        answer = forward_step(batches, model)
        self._context.memory.enter("backward")
        return answer

    def setup_model_and_optimizer(self, original: Call, *arguments: Any, **options: Any) -> Any:
        """The load phase; afterwards it is known where the run begins."""
        tracker = self._context.memory
        with tracker.measuring("load"):
            answer = original(*arguments, **options)
            chunks, optimizer = answer[0], answer[1]
            tracker.kept = functools.partial(kept, chunks, optimizer)
        for chunk in chunks:
            tracker.layers.follow(numbered(chunk))
        self.step = self.restored = get_args().iteration
        self._begun()
        return answer

    def _begun(self) -> None:
        self.metrics = Metrics(self._context, resumed_at=self.restored)
        self._memory = MemoryLog(self._context, resumed_at=self.restored)
        self._memory.write(0)

    def load_checkpoint(self, original: Call, *arguments: Any, **options: Any) -> Any:
        """Checkpoints that are of another model are refused first."""
        with self._checkpoints.loading():
            return original(*arguments, **options)

    def train_step(
        self, original: Call, forward: Call, data: Any, model: Any, optimizer: Any, *rest: Any, **options: Any
    ) -> Any:
        """The first steps are measured; the rate is noted before the scheduler moves it on."""
        self._context.beat.step(self.step + 1)
        self._rate = get_canonical_lr_for_logging(optimizer.param_groups) or 0.0
        call = functools.partial(original, forward, data, model, optimizer, *rest, **options)
        first = self.step < self.restored + loop.MEASURED_STEPS
        if not first and not self._log.due(self.step + 1):
            return call()
        tracker, step = self._context.memory, optimizer.step
        tracker.tokens = self._spec.micro_batch_size * self._spec.sequence_length
        optimizer.step = functools.partial(self._optimizer_step, step)
        with tracker.measuring("forward", () if first else live_bytes.of_process(), summary=first):
            answer = call()
            tracker.rest(live_bytes.of_process() if first else (), summary=first)
        optimizer.step = step
        self._log.write(self.step + 1, self._spec.micro_batch_size * self._spec.sequence_length)
        return answer

    def _optimizer_step(self, step: Call) -> Any:
        self._context.memory.enter("optimizer")
        return step()

    def training_log(self, original: Call, losses: dict[str, torch.Tensor], *rest: Any, **options: Any) -> Any:
        """A step is over; where an evaluation follows, its line waits for that."""
        answer = original(losses, *rest, **options)
        told = inspect.signature(original).bind(losses, *rest, **options).arguments
        self.step, norm = told["iteration"], told["grad_norm"]
        self._last = StepResult(
            loss=self._from_the_last_rank(losses),
            grad_norm=torch.tensor(float("nan") if norm is None else float(norm)),
            learning_rate=self._rate,
        )
        every = self._spec.train.eval_every
        if every is None or self.step % every:
            self._note()
        return answer

    def evaluate(self, original: Call, *arguments: Any, **options: Any) -> Any:
        """Keep the loss, which Megatron only prints."""
        self._context.beat.begin("evaluation")
        first, self._has_evaluated = not self._has_evaluated, True
        with self._measuring("evaluation") if first else contextlib.nullcontext():
            answer = original(*arguments, **options)
        if first:
            self._log.write(self.step)
        self._held_out_loss = self._from_the_last_rank(answer[0])
        return answer

    def evaluate_and_print_results(self, original: Call, *arguments: Any, **options: Any) -> None:
        """Write the line of the step that is evaluated; Megatron's evaluation after the last step is left out."""
        if self._last is not None:
            self._note(lambda: self._evaluated(functools.partial(original, *arguments, **options)))

    def _evaluated(self, call: Callable[[], object]) -> torch.Tensor:
        call()
        if self._held_out_loss is None:
            raise AssertionError("evaluate has run")
        return self._held_out_loss

    def save_checkpoint_and_time(self, original: Call, iteration: int, *rest: Any, **options: Any) -> None:
        """Save, unless it is the last step and ``save.last`` is false."""
        if iteration == self._spec.steps and not self._spec.save.last:
            return
        original(iteration, *rest, **options)
        self._measured.mark()

    def save_checkpoint(self, original: Call, iteration: int, *rest: Any, **options: Any) -> None:
        """Write a checkpoint; the first is followed by the memory tracker."""
        self._context.beat.begin("checkpoint")
        first = not self._context.memory.has("checkpoint_save")
        with self._measuring("checkpoint_save") if first else contextlib.nullcontext():
            self._checkpoints.save(iteration, functools.partial(original, iteration, *rest, **options))
        if first:
            self._log.write(iteration)

    def maybe_finalize_async_save(self, original: Call, blocking: bool = False, **options: Any) -> None:
        """Background writes end here; one that failed pauses saving or, behind the last step, ends the run."""
        self._checkpoints.finalized(functools.partial(original, blocking=blocking, **options), last=blocking)

    def _measuring(self, part: Literal["checkpoint_save", "evaluation"]) -> contextlib.AbstractContextManager[None]:
        """The memory tracker, around the first of what now and then follows a step."""
        summary = part == "checkpoint_save"
        return self._context.memory.measuring(part, live_bytes.of_process(), summary=summary)

    @property
    def _log(self) -> MemoryLog:
        if self._memory is None:
            raise AssertionError("the model is set up before anything is measured")
        return self._memory

    @property
    def _measured(self) -> Metrics:
        if self.metrics is None:
            raise AssertionError("the model is set up before anything is measured")
        return self.metrics

    def _note(self, evaluate: Callable[[], torch.Tensor] | None = None) -> None:
        if self._last is None:
            raise AssertionError("a step is noted once")
        result, self._last = self._last, None
        self._measured.step(self.step, result, evaluate)
        if self.step == self.restored + loop.MEASURED_STEPS:
            metrics.write(self._context, self.restored)
            self._measured.mark()

    def _from_the_last_rank(self, losses: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss, which the last pipeline stage alone knows; the last rank is one of that stage."""
        loss = losses.get(LOSS, torch.zeros((), device=self._context.device)).detach().float().reshape(1)
        dist.broadcast(loss, src=self._context.world - 1)
        return loss


def kept(chunks: Iterable[Any], optimizer: Any) -> Iterator[Kept]:
    """Of a rank's model chunks in Megatron's DDP, and its optimizer."""
    made = list(chunks)
    yield from of_model(made)
    for buffer in (each for chunk in made for name in _BUFFERS for each in _listed(chunk, name)):
        yield "parameters", list(flat([buffer.param_data]))
        yield "gradients", list(flat([buffer.grad_data]))
    for one in getattr(optimizer, "chained_optimizers", None) or [optimizer]:
        masters = [tensor for name in _MASTERS for tensor in flat(getattr(one, name, ()))]
        yield "master_weights", masters
        yield "gradients", [tensor.grad for tensor in masters if tensor.grad is not None]
        yield "optimizer_states", list(flat(getattr(one.optimizer, "state", {})))


def _listed(chunk: Any, name: str) -> list[Any]:
    """The buffers of Megatron's DDP; ``buffers`` of a bare module is a function."""
    found = getattr(chunk, name, [])
    return found if isinstance(found, list) else []


def numbered(chunk: nn.Module) -> dict[int, nn.Module]:
    """The transformer blocks of a model chunk by their numbers in the whole model, from 0; Megatron's begin with 1."""
    return {int(module.layer_number) - 1: module for module in chunk.modules() if isinstance(module, TransformerLayer)}
