"""Pipeline stages by ``torch.distributed.pipelining``: which chunks of the model a rank runs, and their schedule.

A rank builds only the networks of its own chunks and runs them by a schedule in :data:`_SCHEDULES`. Labels are in the
tokens that every stage gets, so only hidden states travel. :class:`Step` hides FSDP2 from torch's stages, and each
stage tells FSDP2 when its last backward pass of a step begins, so that gradients are reduced once. If the schedule
splits backward passes, torch itself gathers a stage's parameters for all passes and reduces its gradients at the end:
FSDP2's hooks do not support a pass for weight gradients alone. A tied token table is on the first and the last stage:
the gradients of the two copies are added after the passes, and the norm counts the first.
"""

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor

from launcher.backends.fsdp.traits import dtypes, splits
from launcher.estimate.rank.stages import chunk_sizes, chunks_of, cut_of
from launcher.spec import RunSpec
from launcher.worker.engine import Context
from launcher.worker.fsdp.scaling import Scaler
from launcher.worker.model import LanguageModel, network

_SCHEDULES = {
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero_bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipe_v": "ScheduleDualPipeV",
}
"""Classes of ``torch.distributed.pipelining`` by ``parallel.schedule``."""


def networks(context: Context, attention: Any) -> Iterator[Any]:
    """The network of each model chunk of this rank on the meta device; the whole network without stages."""
    spec = context.spec
    sizes = chunk_sizes(spec)
    for chunk in _chunks(context):
        made = network.network(spec.model, network.DTYPES[dtypes(spec).parameters], attention=attention)
        network.use_kernels(made, spec)
        network.cast_multipliers(made, spec)
        start = sum(sizes[:chunk])
        network.keep_chunk(made, range(start, start + sizes[chunk]), first=chunk == 0, last=chunk == len(sizes) - 1)
        yield made


def _chunks(context: Context) -> Sequence[int]:
    """The indices of this rank's model chunks, in model order."""
    return chunks_of(cut_of(context.spec), context.spec.stage_of(context.rank))


class Pipeline:
    """Forward and backward passes of one rank, in the order of the schedule.

    ``group`` has the ranks of all stages that work on the same samples; another of them counts the norm of ``copies``.
    """

    def __init__(
        self,
        context: Context,
        models: Sequence[LanguageModel],
        wrapped: Sequence[nn.Module],
        ranks: DeviceMesh,
        scaler: Scaler,
    ) -> None:
        spec = context.spec
        self._device = context.device
        self.group = ranks.get_group("pipeline")
        stages = [
            _Stage(context, module, model, index, self.group)
            for module, model, index in zip(wrapped, models, _chunks(context), strict=True)
        ]
        self._losses: list[torch.Tensor] = []
        self._schedule = _schedule(spec, stages, functools.partial(self._loss, scaler))
        self._micro_batches = spec.gradient_accumulation
        self._ends, self._tables = _tied(spec, models, ranks)
        self.copies = frozenset(self._tables if dist.get_rank(self.group) else self._tables[1:])
        # GPT-2's base model returns a view, which nothing writes to.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")

    def train(self, micro_batches: Sequence[torch.Tensor]) -> torch.Tensor:
        """Run all passes of a step; return the mean loss, or zero on ranks without the last stage."""
        loss = self._run(self._schedule.step, micro_batches)
        self._add_tied()
        return loss

    def _add_tied(self) -> None:
        """Add the gradients of a tied table's copies, which are on two ranks or, in a V-shaped schedule, on one."""
        parts = [
            table.grad.to_local() if isinstance(table.grad, DTensor) else table.grad
            for table in self._tables
            if table.grad is not None
        ]
        if len(parts) == 2:
            torch.add(*parts, out=parts[0])
            parts[1].copy_(parts[0])
        elif parts:
            dist.all_reduce(parts[0], group=self._ends)

    def evaluate(self, batches: Iterable[torch.Tensor]) -> torch.Tensor:
        """The mean loss of batches without training, or zero as in :meth:`train`."""
        losses = [self._run(self._schedule.eval, some) for some in itertools.batched(batches, self._micro_batches)]
        return torch.stack(losses).mean()

    def _run(self, passes: Callable[..., object], micro_batches: Sequence[torch.Tensor]) -> torch.Tensor:
        self._losses.clear()
        inputs = [{"tokens": tokens} for tokens in micro_batches]
        passes(kwarg_mbs=inputs, target_mbs=list(micro_batches), losses=[], return_outputs=False)
        return torch.stack(self._losses).sum() if self._losses else torch.zeros((), device=self._device)

    def _loss(self, scaler: Scaler, mean: torch.Tensor, _: object) -> torch.Tensor:
        loss = mean / self._micro_batches
        self._losses.append(loss.detach())
        return scaler.scale(loss)


def _schedule(spec: RunSpec, stages: Sequence[PipelineStage], loss: Callable[..., torch.Tensor]) -> Any:
    name = spec.parallel.schedule
    made: Any = getattr(pipelining.schedules, _SCHEDULES[name])
    some = stages[0] if name in ("1f1b", "gpipe") else list(stages)
    return made(some, n_microbatches=spec.gradient_accumulation, loss_fn=loss, scale_grads=False)


def _tied(
    spec: RunSpec, models: Sequence[LanguageModel], ranks: DeviceMesh
) -> tuple[dist.ProcessGroup | None, list[torch.Tensor]]:
    """The group of the first and last stage of this rank's pipeline, and this rank's copies of a tied token table."""
    if not spec.model.tie_word_embeddings:
        return None, []
    columns = ranks.mesh.flatten(1).t().tolist()
    ends, _ = dist.new_subgroups_by_enumeration([[column[0], column[-1]] for column in columns])
    found = (model.network.get_input_embeddings() for model in models)
    assert not isinstance(ends, int)
    return ends, [table.weight for table in found if hasattr(table, "weight") and table.weight.requires_grad]


class _Stage(PipelineStage):
    """A stage that reports its phases to the memory tracker and its last backward pass to FSDP2.

    With a schedule that splits backward passes torch itself drives FSDP2 (see the module docstring).
    """

    def __init__(
        self, context: Context, module: nn.Module, model: LanguageModel, index: int, group: dist.ProcessGroup
    ) -> None:
        spec, self._memory = context.spec, context.memory
        passed = (_passed(spec),)
        count = spec.parallel.pipeline * spec.parallel.virtual_pipeline
        arguments = passed if index else ()
        super().__init__(module, index, count, context.device, input_args=arguments, output_args=passed, group=group)
        self._splits = splits(spec)
        self._sharded = model if isinstance(model, FSDPModule) and not self._splits else None
        self._each = spec.backend.micro_step_sync

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        """Pass the tokens first, as a language model takes them, and return no view, which torch could not detach."""
        if isinstance(self.submod, LanguageModel):
            args, kwargs = (kwargs["tokens"], *args), {}
        made: torch.Tensor = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        return made.clone() if self._splits and made._is_view() else made

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Report the phase, then do as torch does."""
        self._memory.enter("forward")
        return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Report to the tracker and FSDP2, then do as torch does."""
        self._memory.enter("backward")
        if self._sharded is not None:
            self._sharded.set_requires_gradient_sync(last_backward or self._each)
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Report the phase, then do as torch does."""
        self._memory.enter("backward")
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def get_local_bwd_output(self, mb_index: int) -> Any:
        """As torch does; empty in an evaluation, in which torch still asks for gradients between a rank's chunks."""
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        """Do as torch does, but nothing in an evaluation."""
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)


def _passed(spec: RunSpec) -> torch.Tensor:
    """The tensor passed between stages: hidden states of a micro-batch, on the meta device.

    Its shape is ``(micro_batch_size, sequence_length, hidden_size)``; with sequence parallelism each tensor parallel
    rank sends its part of the sequence.
    """
    formats, parallel = dtypes(spec), spec.parallel
    length = spec.sequence_length // (parallel.tensor if parallel.sequence else 1)
    dtype = network.DTYPES[formats.parameters if formats.autocast else formats.compute]
    shape = (spec.micro_batch_size, length, spec.model.hidden_size)
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


class Step(nn.Module):
    """A model chunk as torch's stages call it: the previous stage's states by position, tokens by name.

    It also hides FSDP2 from torch's stages, which would otherwise keep every block gathered and every gradient
    unreduced from the first to the last micro-batch of a step.
    """

    def __init__(self, chunk: nn.Module, autocast: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
        super().__init__()
        self.chunk, self._autocast = chunk, autocast

    def forward(self, *entering: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return states for the next stage, or the mean loss."""
        with self._autocast():
            made: torch.Tensor = self.chunk(tokens, *entering)
        return made
