"""Pipeline stages by ``torch.distributed.pipelining``: which chunks of the model a rank runs, and their schedule.

A rank builds the networks of its chunks alone and runs them by the schedules of :data:`_SCHEDULES`. Labels are in the
tokens that every stage gets, so only hidden states travel. FSDP2 is hidden from torch's stages by :class:`Step`, and
each stage tells it when its last backward pass of a step begins, so that gradients are reduced once. Where the schedule
splits backward passes torch itself gathers a stage's parameters for all passes and reduces its gradients at their end:
the hooks of FSDP2 know no pass for the weights alone. A tied token table is on the first and the last stage: the
gradients of the two copies are added after the passes, and the norm counts the first.
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
"""Classes of ``torch.distributed.pipelining``."""


def networks(context: Context, attention: Any) -> Iterator[Any]:
    """The network of each model chunk of this rank on the meta device; the whole one where there are no stages."""
    spec = context.spec
    sizes = chunk_sizes(spec)
    for chunk in _chunks(context):
        made = network.network(spec.model, network.DTYPES[dtypes(spec).parameters], attention=attention)
        network.use_kernels(made, spec)
        network.narrow(made, spec)
        start = sum(sizes[:chunk])
        network.cut(made, range(start, start + sizes[chunk]), first=chunk == 0, last=chunk == len(sizes) - 1)
        yield made


def _chunks(context: Context) -> Sequence[int]:
    """The numbers of this rank's model chunks, in the order of the model."""
    return chunks_of(cut_of(context.spec), context.spec.stage_of(context.rank))


class Pipeline:
    """The forward and backward passes of one rank, in the order of the schedule.

    ``group`` has the ranks of the other stages that work on the same samples; the norm of ``copies`` counts there.
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
        # GPT-2's base model ends in a view, which nobody writes into.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")

    def train(self, micro_batches: Sequence[torch.Tensor]) -> torch.Tensor:
        """Run all passes of a step; return the mean loss, or zero on ranks of other stages than the last."""
        loss = self._run(self._schedule.step, micro_batches)
        self._add_tied()
        return loss

    def _add_tied(self) -> None:
        """Add the gradients of a tied table's copies, which are on two ranks or, where stages are folded, on one."""
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
        """The mean loss of batches that nothing is learnt from, or zero as for :meth:`train`."""
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
    """First and last stage of this rank's pipeline, and this rank's copies of the token table where it is tied."""
    if not spec.model.tie_word_embeddings:
        return None, []
    columns = ranks.mesh.flatten(1).t().tolist()
    ends, _ = dist.new_subgroups_by_enumeration([[column[0], column[-1]] for column in columns])
    found = (model.network.get_input_embeddings() for model in models)
    assert not isinstance(ends, int)
    return ends, [table.weight for table in found if hasattr(table, "weight") and table.weight.requires_grad]


class _Stage(PipelineStage):
    """A stage that tells the memory tracker of its phases and FSDP2 of its last backward pass.

    A stage of a split schedule is FSDP2's own module, which torch itself tells: see the head of this file.
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
        """Hand over the tokens first, as a language model has them, and keep no view, which torch could not detach."""
        if isinstance(self.submod, LanguageModel):
            args, kwargs = (kwargs["tokens"], *args), {}
        made: torch.Tensor = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        return made.clone() if self._splits and made._is_view() else made

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Tell the tracker, and go on as torch does."""
        self._memory.enter("forward")
        return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Tell the tracker and FSDP2, and go on as torch does."""
        self._memory.enter("backward")
        if self._sharded is not None:
            self._sharded.set_requires_gradient_sync(last_backward or self._each)
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Tell the tracker, and go on as torch does."""
        self._memory.enter("backward")
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def get_local_bwd_output(self, mb_index: int) -> Any:
        """Nothing in an evaluation, where torch asks for gradients between two chunks of a rank all the same."""
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        """Do nothing in an evaluation."""
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)


def _passed(spec: RunSpec) -> torch.Tensor:
    """The tensor that goes from stage to stage: hidden states of a micro-batch, on the meta device.

    Its shape is ``(micro_batch_size, sequence_length, hidden_size)``; with sequence parallelism each tensor parallel
    rank sends its part of the sequence.
    """
    formats, parallel = dtypes(spec), spec.parallel
    length = spec.sequence_length // (parallel.tensor if parallel.sequence else 1)
    dtype = network.DTYPES[formats.parameters if formats.autocast else formats.compute]
    shape = (spec.micro_batch_size, length, spec.model.hidden_size)
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


class Step(nn.Module):
    """A model chunk as torch's stages call it: states from the stage before by position, tokens by name.

    It also hides FSDP2 from them, which would otherwise keep every block gathered and every gradient unreduced from
    the first to the last micro-batch of a step.
    """

    def __init__(self, chunk: nn.Module, autocast: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
        super().__init__()
        self.chunk, self._autocast = chunk, autocast

    def forward(self, *entering: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return states for the next stage, or the mean loss."""
        with self._autocast():
            made: torch.Tensor = self.chunk(tokens, *entering)
        return made
