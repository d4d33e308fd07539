"""The engine of DeepSpeed: ZeRO 0 to 3, tensor parallelism, pipeline stages.

The launcher sets the learning rate before every step, by the schedule that all engines share, and the dropout seed.
Without pipeline stages DeepSpeed is called once per micro-batch; with stages it runs a whole step (``train_batch``),
and wrapped instructions of its schedule report their phases to the memory tracker.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.ops.op_builder import AsyncIOBuilder
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.sequence_parallel import parallel_state_sp
from deepspeed.runtime.utils import is_model_parallel_parameter

from launcher.base.files import JsonObject, load_json
from launcher.worker import TrainingError, marks
from launcher.worker.deepspeed import checkpoint, model
from launcher.worker.engine import Context, PendingSave, StepResult
from launcher.worker.memory import MemoryTracker, live_bytes
from launcher.worker.memory.piles import Kept, flat, model_piles
from launcher.worker.model import LanguageModel, export, initial, network, optimizers, shards, ulysses
from launcher.worker.model.ulysses import connect

_MASTERS = (
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
    "fp32_groups_flat_partition",
    "fp32_groups_flat",
    "fp32_groups",
)
_GRADIENTS = ("averaged_gradients", "grad_partitions_flat_buffer", "fp32_groups_gradients_flat")
_BUCKETS = "ipg_buckets"  # One per dtype; they hold contiguous gradients until these are reduced.


def build(context: Context) -> "DeepSpeedTraining":
    """Make the engine of one rank from the run directory's ``ds_config.json``."""
    spec = context.spec
    config: JsonObject = load_json(context.directory / "ds_config.json")
    _prepare(context.device, config)
    shared = ulysses.grouped(spec) if spec.parallel.ulysses > 1 else None
    built, groups = model.build(context, config, shared)
    network.prepare_blocks([built.network], context)
    whole = model.Stages(built, context) if spec.parallel.pipeline > 1 else built
    mpu = parallel_state_sp if shared else None  # DeepSpeed asks it for groups and sizes.
    own = spec.optimizer.name not in ("adamw", "sgd")  # DeepSpeed makes these from its configuration.
    stepping = shards.optimizer(spec, groups, flat=True) if own else None
    with _explained():
        engine, *_ = deepspeed.initialize(
            model=whole, optimizer=stepping, model_parameters=groups, config=config, mpu=mpu
        )
    _follow_buckets(engine, context.memory)
    if spec.zero.stage == 0:
        _undo_first_step(engine)
    return (PipelineTraining if spec.parallel.pipeline > 1 else DeepSpeedTraining)(context, engine)


class DeepSpeedTraining:
    """One rank's part of the model, as a ``launcher.worker.engine.Engine``."""

    def __init__(self, context: Context, engine: Any) -> None:
        self._context, self._spec, self._engine = context, context.spec, engine

    def train_step(self, step: int, micro_batches: Sequence[torch.Tensor]) -> StepResult:
        """Do one optimizer step; DeepSpeed counts micro-batches and runs the optimizer after the last."""
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
        norm = self._norm_after_step() if norm is None else norm
        return StepResult(loss=self._mean(torch.stack(losses).mean()), grad_norm=norm, learning_rate=rate)

    def _begin(self, step: int, micro_batches: Sequence[torch.Tensor]) -> float:
        if self._spec.data.marked:
            self._part.divisor = marks.share(self._spec, [marks.count(rows) for rows in micro_batches])
        if self._spec.model.dropout or self._spec.adapter.dropout:  # A resumed run then draws the same masks.
            torch.manual_seed(initial.seed_of(self._spec.train.seed, "dropout", step, self._context.rank))
        return optimizers.set_rate([self._engine.optimizer], self._spec, step)

    @property
    def _part(self) -> LanguageModel:
        part: LanguageModel = self._engine.module
        return part

    @torch.no_grad()
    def evaluate(self, batches: Iterable[torch.Tensor]) -> torch.Tensor:
        """The mean loss over all ranks' batches."""
        if not self._spec.data.marked:
            return self._evaluate(batches)
        counts: list[torch.Tensor] = []
        self._part.divisor = 1.0  # The number of labels is known only after all batches.
        loss = self._evaluate(marks.count_each(batches, counts))
        return loss / marks.share(self._spec, counts)

    def _evaluate(self, batches: Iterable[torch.Tensor]) -> torch.Tensor:
        self._engine.eval()
        losses = [self._engine(tokens) for tokens in batches]
        self._engine.train()
        return self._mean(torch.stack(losses).mean())

    def save(self, directory: Path) -> PendingSave | None:
        """Write each rank's share of the checkpoint."""
        checkpoint.save(self._context, self._engine, directory)
        return None

    def load(self, directory: Path) -> None:
        """Load what :meth:`save` wrote; for another number of ranks through DeepSpeed's universal format."""
        checkpoint.load(self._context, self._engine, directory)

    def export(self, directory: Path) -> None:
        """Write safetensors, gathering one parameter at a time."""
        export.write([self._engine.module.network], self._context, directory, model.gathered, model.elements)

    def piles(self) -> Iterator[Kept]:
        """Tensors that DeepSpeed keeps, by pile; found by DeepSpeed's attribute names."""
        wrapper = self._engine.optimizer
        optimizer = getattr(wrapper, "optimizer", wrapper)
        yield from model_piles([self._engine.module])
        for name in _MASTERS:
            yield "master_weights", list(flat(getattr(wrapper, name, ())))
        for name in _GRADIENTS:
            yield "gradients", list(flat(getattr(wrapper, name, ())))
        for bucket in getattr(wrapper, _BUCKETS, {}).values():
            yield "reduce_buffers", list(flat(bucket.buffer))
        yield "optimizer_states", list(flat(optimizer.state))

    def tensors(self) -> Iterable[torch.Tensor]:
        """Every tensor in the process: DeepSpeed keeps its partitions and buffers in dozens of places."""
        return list(live_bytes.tensors_of_process())

    def _mean(self, loss: torch.Tensor) -> torch.Tensor:
        total = loss.float().clone()
        dist.all_reduce(total)
        return total / self._context.world

    def _norm_before_step(self) -> torch.Tensor | None:
        """The norm in fp32 without ZeRO, else None: there DeepSpeed clips in its step and does not keep the norm."""
        if self._spec.zero.stage > 0 or self._spec.precision.compute != "fp32":
            return None
        return _total_norm(self._engine)

    def _norm_after_step(self) -> torch.Tensor:
        return torch.as_tensor(self._engine.get_global_grad_norm(), dtype=torch.float32).detach()


class PipelineTraining(DeepSpeedTraining):
    """One rank's pipeline stage; DeepSpeed runs a whole step by itself."""

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
        """Run all passes of all micro-batches, and the optimizer."""
        rate = self._begin(step, micro_batches)
        loss = self._engine.train_batch(data_iter=_pairs(micro_batches))
        norm = self._norm_after_step() if self._norm is None else self._norm
        return StepResult(loss=loss.detach(), grad_norm=norm, learning_rate=rate)

    @property
    def _part(self) -> LanguageModel:
        part: LanguageModel = self._engine.module.model
        return part

    def _evaluate(self, batches: Iterable[torch.Tensor]) -> torch.Tensor:
        micro_batches = list(batches)
        loss: torch.Tensor = self._engine.eval_batch(_pairs(micro_batches), num_micro_batches=len(micro_batches))
        return loss

    def export(self, directory: Path) -> None:
        """Write safetensors; each stage writes its own."""
        stages = self._engine.grid.get_pipe_parallel_group()
        made = self._engine.module.model.network
        export.write([made], self._context, directory, whole=model.gathered, stages=stages)

    def _entering(self, phase: Any, instruction: Callable[..., None]) -> Callable[..., None]:
        def entered(engine: Any, **arguments: Any) -> None:
            self._context.memory.enter(phase)
            if phase == "optimizer":
                self._norm = self._norm_before_step()
            instruction(engine, **arguments)

        return entered


def _pairs(batches: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same tokens as inputs for the first stage and as labels for the last; each takes its own columns."""
    return ((tokens, tokens) for tokens in batches)


def _follow_buckets(engine: Any, memory: MemoryTracker) -> None:
    wrapper = engine.optimizer
    if hasattr(wrapper, "setup_buckets"):
        make = wrapper.setup_buckets

        def made() -> None:
            make()
            for bucket in getattr(wrapper, _BUCKETS, {}).values():
                memory.label("reduce_buffers", flat(bucket.buffer))

        wrapper.setup_buckets = made


def _prepare(device: torch.device, config: JsonObject) -> None:
    connect(device)
    if "aio" in config and not AsyncIOBuilder().is_compatible(verbose=False):
        raise TrainingError(
            "offload to NVMe needs DeepSpeed's async_io, which is compiled with libaio's headers, and this node has "
            "none: install libaio-dev (Debian, Ubuntu) or libaio-devel (Red Hat), or set zero.offload_optimizer=cpu "
            "zero.offload_parameters=none"
        )


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Raise TrainingError with the way out if one of DeepSpeed's operators cannot be compiled."""
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if not any(mark in text for mark in ("JIT load", "building extension", "CUDA_HOME", "CUDAMismatchException")):
            raise
        raise TrainingError(
            f"DeepSpeed could not compile one of its operators on this node ({text.splitlines()[0]}): "
            "load a compiler and the CUDA toolkit, or use torch's own kernel: optimizer.fused=true"
        ) from error


@torch.no_grad()
def _undo_first_step(engine: Any) -> None:
    """Undo the step with zero gradients with which DeepSpeed 0.19.8 starts in 16 bits without ZeRO.

    (``FP16_UnfusedOptimizer.initialize_optimizer_states``.) It would decay the weights and count in the bias
    correction.
    """
    wrapper = engine.optimizer
    if hasattr(wrapper, "fp32_groups"):
        pairs = [
            pair
            for masters, held in zip(wrapper.fp32_groups, wrapper.fp16_groups, strict=True)
            for pair in zip(masters, held, strict=True)
        ]
    elif hasattr(wrapper, "fp32_groups_flat"):
        pairs = list(zip(wrapper.fp32_groups_flat, wrapper.fp16_groups_flat, strict=True))
    else:
        return
    for master, held in pairs:
        master.copy_(held)
    wrapper.optimizer.state.clear()


def _total_norm(engine: Any) -> torch.Tensor:
    """The norm of all averaged gradients without ZeRO, computed as in DeepSpeed's ``clip_grad_norm_``."""
    mpu = engine.mpu
    everything = mpu is None or mpu.get_model_parallel_rank() == 0
    gradients = [
        parameter.grad
        for parameter in engine.module.parameters()
        if parameter.grad is not None and (everything or is_model_parallel_parameter(parameter))
    ]
    norm = torch.nn.utils.get_total_norm(gradients)
    if mpu is None:
        return norm
    squared = norm.square()
    torch.distributed.all_reduce(squared, group=mpu.get_model_parallel_group())
    return squared.sqrt()
