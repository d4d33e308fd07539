"""A model in training with DeepSpeed: ZeRO 0 to 3, tensor parallel parts, pipeline stages.

:func:`build` makes the model without memory, gives each rank its part, and hands model and ``ds_config.json`` to
``deepspeed.initialize``. The learning rate is set by the launcher before every step, with the schedule of all engines,
and so is the seed of dropout. Without pipeline stages DeepSpeed is called micro-batch by micro-batch and steps after
the last by its own count; with stages it runs a whole step (``train_batch``), and the memory tracker is told of its
phases by wrapping the instructions of its schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.pipe import schedule

from launcher.base.files import load_json
from launcher.worker import marks
from launcher.worker.deepspeed import checkpoint, model, stages, start, tensor, ulysses
from launcher.worker.engine import Context, PendingSave, StepResult
from launcher.worker.memory import MemoryTracker, live_bytes
from launcher.worker.memory.piles import Kept, flat, of_model
from launcher.worker.model import LanguageModel, export, initial, network, optimizers

_MASTERS = (
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
    "fp32_groups_flat_partition",
    "fp32_groups_flat",
    "fp32_groups",
)
_GRADIENTS = ("averaged_gradients", "grad_partitions_flat_buffer", "fp32_groups_gradients_flat")
_BUCKETS = "ipg_buckets"
"""A bucket for each format, in which contiguous gradients wait to be reduced."""


def build(context: Context) -> DeepSpeedTraining:
    """The engine of one rank, from the run directory's ``ds_config.json``.

    Raises:
        TrainingError: One of DeepSpeed's operators cannot be compiled here.
    """
    spec = context.spec
    config: dict[str, Any] = load_json(context.directory / "ds_config.json")
    start.prepare(context.device, config)
    shared = ulysses.Ulysses(context) if spec.parallel.ulysses > 1 else None
    built, groups = model.build(context, config, shared)
    network.recompute(network.blocks(built.network), spec)
    context.clock.follow(network.blocks(built.network), context.device)
    context.memory.layers.follow(network.numbered(built.network))
    whole = stages.Stages(built, context) if spec.parallel.pipeline > 1 else built
    mpu = shared.mpu if shared else None
    with start.explained():
        engine, *_ = deepspeed.initialize(model=whole, model_parameters=groups, config=config, mpu=mpu)
    follow_buckets(engine, context.memory)
    if spec.zero.stage == 0:
        start.undo_first_step(engine)
    return (PipelineTraining if spec.parallel.pipeline > 1 else DeepSpeedTraining)(context, engine)


class DeepSpeedTraining:
    """One rank's part of the model, as ``launcher.worker.engine.Engine`` asks."""

    def __init__(self, context: Context, engine: Any) -> None:
        self._context, self._spec, self._engine = context, context.spec, engine

    def train_step(self, step: int, micro_batches: Sequence[torch.Tensor]) -> StepResult:
        """One optimizer step; DeepSpeed counts the micro-batches and steps after the last."""
        rate = self._begin(step, micro_batches)
        memory, losses, norm = self._context.memory, [], None
        for number, tokens in enumerate(micro_batches, start=1):
            memory.enter("forward")
            loss = self._engine(tokens)
            memory.enter("backward")
            self._engine.backward(loss / ulysses.excess(self._spec))
            losses.append(loss.detach())
            if number == len(micro_batches):
                memory.enter("optimizer")
                norm = self._norm_before_step()
            self._engine.step()
        return StepResult(
            loss=self._mean(torch.stack(losses).mean()),
            grad_norm=self._norm_after_step() if norm is None else norm,
            learning_rate=rate,
        )

    def _begin(self, step: int, micro_batches: Sequence[torch.Tensor]) -> float:
        """Seeds, learning rate and trained labels of a step."""
        if self._spec.data.marked:
            self._part.divisor = marks.share(self._spec, [marks.count(rows) for rows in micro_batches])
        if self._spec.model.dropout or self._spec.adapter.dropout:  # A resumed run then draws what this one would have.
            torch.manual_seed(initial.seed_of(self._spec.train.seed, "dropout", step, self._context.rank))
        rate = optimizers.learning_rate(self._spec.optimizer, step, self._spec.steps)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        return rate

    @property
    def _part(self) -> LanguageModel:
        """This rank's part of the model."""
        part: LanguageModel = self._engine.module
        return part

    @torch.no_grad()
    def evaluate(self, batches: Iterable[torch.Tensor]) -> torch.Tensor:
        """The mean loss over all ranks' batches."""
        if not self._spec.data.marked:
            return self._evaluate(batches)
        counts: list[torch.Tensor] = []
        self._part.divisor = 1.0  # How many labels there are is known once the batches have passed.
        loss = self._evaluate(marks.counted(batches, counts))
        return loss / marks.share(self._spec, counts)

    def _evaluate(self, batches: Iterable[torch.Tensor]) -> torch.Tensor:
        self._engine.eval()
        losses = [self._engine(tokens) for tokens in batches]
        self._engine.train()
        return self._mean(torch.stack(losses).mean())

    def save(self, directory: Path) -> PendingSave | None:
        """Write each rank's share."""
        checkpoint.save(self._context, self._engine, directory)
        return None

    def load(self, directory: Path) -> None:
        """Read what :meth:`save` wrote, with another number of ranks by way of DeepSpeed's universal format."""
        checkpoint.load(self._context, self._engine, directory)

    def export(self, directory: Path) -> None:
        """Write safetensors, one parameter gathered at a time."""
        made = [self._engine.module.network]
        export.write(made, self._context, directory, model.gathered, tensor.elements)

    def piles(self) -> Iterator[Kept]:
        """By DeepSpeed's own names."""
        return kept(self._engine)

    def tensors(self) -> Iterable[torch.Tensor]:
        """Every tensor of the process: DeepSpeed keeps its partitions and buffers in dozens of places."""
        return list(live_bytes.of_process())

    def _mean(self, loss: torch.Tensor) -> torch.Tensor:
        total = loss.float().clone()
        dist.all_reduce(total)
        return total / self._context.world

    def _norm_before_step(self) -> torch.Tensor | None:
        """Without ZeRO in fp32, DeepSpeed clips in its step and forgets the norm; gradients are averaged by then."""
        if self._spec.zero.stage > 0 or self._spec.precision.compute != "fp32":
            return None
        return start.total_norm(self._engine)

    def _norm_after_step(self) -> torch.Tensor:
        return torch.as_tensor(self._engine.get_global_grad_norm(), dtype=torch.float32).detach()


class PipelineTraining(DeepSpeedTraining):
    """One rank's stage in training; DeepSpeed walks through a whole step by itself."""

    def __init__(self, context: Context, engine: Any) -> None:
        super().__init__(context, engine)
        self._norm: torch.Tensor | None = None
        own = engine._INSTRUCTION_MAP
        engine._INSTRUCTION_MAP = {
            **own,
            schedule.ForwardPass: self._entering("forward", own[schedule.ForwardPass]),
            schedule.BackwardPass: self._entering("backward", own[schedule.BackwardPass]),
            schedule.OptimizerStep: self._entering("optimizer", own[schedule.OptimizerStep]),
        }

    def train_step(self, step: int, micro_batches: Sequence[torch.Tensor]) -> StepResult:
        """All passes of all micro-batches, and the step."""
        rate = self._begin(step, micro_batches)
        loss = self._engine.train_batch(data_iter=_pairs(micro_batches))
        norm = self._norm_after_step() if self._norm is None else self._norm
        return StepResult(loss=loss.detach(), grad_norm=norm, learning_rate=rate)

    @property
    def _part(self) -> LanguageModel:
        part: LanguageModel = self._engine.module.model
        return part

    def _evaluate(self, batches: Iterable[torch.Tensor]) -> torch.Tensor:
        some = list(batches)
        loss: torch.Tensor = self._engine.eval_batch(_pairs(some), num_micro_batches=len(some))
        return loss

    def export(self, directory: Path) -> None:
        """Write safetensors, each stage its own."""
        stages = self._engine.grid.get_pipe_parallel_group()
        made = self._engine.module.model.network
        export.write([made], self._context, directory, whole=model.gathered, stages=stages)

    def _entering(self, phase: Any, instruction: Callable[..., None]) -> Callable[..., None]:
        """An instruction of the schedule that tells the memory tracker of its phase."""

        def entered(engine: Any, **arguments: Any) -> None:
            self._context.memory.enter(phase)
            if phase == "optimizer":
                self._norm = self._norm_before_step()
            instruction(engine, **arguments)

        return entered


def _pairs(batches: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs for the first stage and labels for the last: the same tokens, of which each takes its columns."""
    return ((tokens, tokens) for tokens in batches)


def kept(engine: Any) -> Iterator[Kept]:
    """Of a DeepSpeed engine."""
    wrapper = engine.optimizer
    optimizer = getattr(wrapper, "optimizer", wrapper)
    yield from of_model([engine.module])
    for name in _MASTERS:
        yield "master_weights", list(flat(getattr(wrapper, name, ())))
    for name in _GRADIENTS:
        yield "gradients", list(flat(getattr(wrapper, name, ())))
    for bucket in getattr(wrapper, _BUCKETS, {}).values():
        yield "reduce_buffers", list(flat(bucket.buffer))
    yield "optimizer_states", list(flat(optimizer.state))


def follow_buckets(engine: Any, memory: MemoryTracker) -> None:
    """Tell the tracker of buckets that ZeRO 1 and 2 make in a backward pass and drop at its end."""
    wrapper = engine.optimizer
    if hasattr(wrapper, "setup_buckets"):
        make = wrapper.setup_buckets

        def made() -> None:
            make()
            for bucket in getattr(wrapper, _BUCKETS, {}).values():
                memory.label("reduce_buffers", flat(bucket.buffer))

        wrapper.setup_buckets = made
