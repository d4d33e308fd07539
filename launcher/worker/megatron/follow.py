"""Hooks around Megatron's training loop that record metrics, memory and checkpoints as in every run."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.optimizer_param_scheduler import get_canonical_lr_for_logging
from megatron.core.transformer.transformer_layer import TransformerLayer
from megatron.training import get_args, training
from torch import nn

from launcher.worker import loop, replaced
from launcher.worker.data import Batches
from launcher.worker.engine import Context, StepResult
from launcher.worker.megatron.checkpoints import Checkpoints
from launcher.worker.megatron.data import LOSS, forward_step
from launcher.worker.memory import live_bytes
from launcher.worker.memory.piles import Kept, flat, model_piles
from launcher.worker.metrics import Losses
from launcher.worker.profile import Profile

_MASTERS = ("shard_fp32_from_float16_groups", "fp32_from_float16_groups")
_BUFFERS = ("buffers", "expert_parallel_buffers")

type Call = Callable[..., Any]


class MegatronHooks:
    """Wraps Megatron's functions with its methods."""

    _FOLLOWED = (
        "setup_model_and_optimizer", "train_step", "training_log", "evaluate", "evaluate_and_print_results",
        "load_checkpoint", "save_checkpoint_and_time", "save_checkpoint", "maybe_finalize_async_save",
    )  # fmt: skip

    def __init__(self, context: Context, batches: Batches) -> None:
        self._context, self._spec = context, context.spec
        self._checkpoints = Checkpoints(context, batches)
        self._profile = Profile(context)
        self.step = 0
        self.followed: loop.StepMonitor  # Made once the first step is known.
        self._rate = 0.0
        self._last: StepResult | None = None
        self._held_out_loss = torch.zeros(())

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Wrap each function of ``megatron.training.training`` in ``_FOLLOWED`` with the method of the same name."""
        with contextlib.ExitStack() as stack:
            for name in self._FOLLOWED:
                method = functools.partial(getattr(self, name), getattr(training, name))
                stack.enter_context(replaced(training, name, method))
            yield

    def forward_step(self, batches: Any, model: Any) -> Any:
        """Run a micro-batch forward, and enter the phases before and after it."""
        self._context.memory.enter("forward")
        answer = forward_step(batches, model)
        self._context.memory.enter("backward")
        return answer

    def setup_model_and_optimizer(self, original: Call, *arguments: Any, **options: Any) -> Any:
        """Measure the load phase; afterwards the step at which the run begins is known."""
        tracker = self._context.memory
        with tracker.measuring("load"):
            answer = original(*arguments, **options)
            chunks, optimizer = answer[0], answer[1]
            tracker.kept = functools.partial(kept, chunks, optimizer)
        for chunk in chunks:
            tracker.layers.follow(numbered(chunk))
        self.step = get_args().iteration
        self._begun()
        return answer

    def _begun(self) -> None:
        self.recorded = self.followed = loop.StepRecorder(
            self._context, live_bytes.tensors_of_process, restored=self.step
        )
        self.recorded.loaded()

    def load_checkpoint(self, original: Call, chunks: Any, optimizer: Any, *rest: Any, **options: Any) -> Any:
        """Refuse a checkpoint of another model, then load."""
        if self._spec.optimizer.name == "sgd":  # ``core/optimizer/__init__.py`` (0.19) makes no states to load for it.
            for each in optimizer.chained_optimizers:
                each.init_state_fn = _make_momentum
        with self._checkpoints.loading():
            return original(chunks, optimizer, *rest, **options)

    def train_step(
        self, original: Call, forward: Call, data: Any, model: Any, optimizer: Any, *rest: Any, **options: Any
    ) -> Any:
        """Measure the first steps; read the learning rate before the scheduler changes it."""
        self._context.beat.step(self.step + 1)
        self._rate = get_canonical_lr_for_logging(optimizer.param_groups) or 0.0
        tokens, step = self._spec.micro_batch_size * self._spec.sequence_length, optimizer.step
        with (
            self._profile.step(self.step + 1),
            self.followed.step(self.step + 1, tokens),
            replaced(optimizer, "step", functools.partial(self._optimizer_step, step)),
        ):
            return original(forward, data, model, optimizer, *rest, **options)

    def _optimizer_step(self, step: Call) -> Any:
        self._context.memory.enter("optimizer")
        return step()

    def training_log(self, original: Call, losses: dict[str, torch.Tensor], *rest: Any, **options: Any) -> Any:
        """Record a step that is over; if an evaluation follows, the line is written after it."""
        answer = original(losses, *rest, **options)
        bound = inspect.signature(original).bind(losses, *rest, **options).arguments
        self.step, norm = bound["iteration"], bound["grad_norm"]
        self._last = StepResult(
            loss=self._from_the_last_rank(losses),
            grad_norm=None if norm is None else torch.tensor(float(norm)),
            learning_rate=self._rate,
        )
        if not loop.due(self._spec.eval_every, self.step):
            self._note()
        return answer

    def evaluate(self, original: Call, *arguments: Any, **options: Any) -> Any:
        """Keep the evaluation loss, which Megatron only prints."""
        self._context.beat.begin("evaluation")
        with self.followed.evaluation(self.step):
            answer = original(*arguments, **options)
        self._held_out_loss = self._from_the_last_rank(answer[0])
        return answer

    def evaluate_and_print_results(self, original: Call, *arguments: Any, **options: Any) -> None:
        """Write the line of the evaluated step; skip Megatron's extra evaluation after the last step."""

        def evaluated() -> Losses:
            original(*arguments, **options)
            return {"": self._held_out_loss}

        if self._last is not None:
            self._note(evaluated)

    def save_checkpoint_and_time(self, original: Call, iteration: int, *rest: Any, **options: Any) -> None:
        """Save, unless it is the last step and ``save.last`` is false."""
        if iteration == self._spec.steps and not self._spec.save.last:
            return
        original(iteration, *rest, **options)

    def save_checkpoint(self, original: Call, iteration: int, *rest: Any, **options: Any) -> None:
        """Write a checkpoint, measured if it is the first."""
        with self.recorded.saving(iteration):
            self._checkpoints.save(iteration, functools.partial(original, iteration, *rest, **options))

    def maybe_finalize_async_save(self, original: Call, blocking: bool = False, **options: Any) -> None:
        """Finish background writes; one that failed pauses saving or, after the last step, ends the run."""
        self._checkpoints.finalize(functools.partial(original, blocking=blocking, **options), last=blocking)

    def _note(self, evaluate: Callable[[], Losses] | None = None) -> None:
        assert self._last is not None, "a step is recorded once"
        result, self._last = self._last, None
        self.recorded.line(self.step, result, evaluate)

    def _from_the_last_rank(self, losses: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss, which only the last pipeline stage has; the last rank belongs to that stage."""
        loss = losses.get(LOSS, torch.zeros((), device=self._context.device)).detach().float().reshape(1)
        dist.broadcast(loss, src=self._context.world - 1)
        return loss


def kept(chunks: Iterable[Any], optimizer: Any) -> Iterator[Kept]:
    """Tensors of a rank's model chunks in Megatron's DDP, and of its optimizer, by pile."""
    made = list(chunks)
    yield from model_piles(made)
    for buffer in (each for chunk in made for name in _BUFFERS for each in _listed(chunk, name)):
        yield "parameters", list(flat([buffer.param_data]))
        yield "gradients", list(flat([buffer.grad_data]))
    for one in getattr(optimizer, "chained_optimizers", None) or [optimizer]:
        masters = [tensor for name in _MASTERS for tensor in flat(getattr(one, name, ()))]
        yield "master_weights", masters
        yield "gradients", [tensor.grad for tensor in masters if tensor.grad is not None]
        bare = getattr(one, "optimizer", one)  # Muon is in the chain without a wrapper.
        yield "optimizer_states", list(flat(getattr(bare, "state", {})))


def _listed(chunk: Any, name: str) -> list[Any]:
    found = getattr(chunk, name, [])  # ``buffers`` of a bare module is a function.
    return found if isinstance(found, list) else []


def numbered(chunk: nn.Module) -> dict[int, nn.Module]:
    """The transformer blocks of a model chunk by their index in the whole model, from 0 (Megatron's start at 1)."""
    return {int(module.layer_number) - 1: module for module in chunk.modules() if isinstance(module, TransformerLayer)}


def _make_momentum(optimizer: torch.optim.Optimizer, config: object) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"] if group["momentum"] else ():
            optimizer.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))
