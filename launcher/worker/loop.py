"""The training loop, the same for every engine: data, steps, evaluation, checkpoints, metrics and a clean end.

Before each step the ranks begin to agree on whether one of them was asked to stop and whether a background write still
runs; the answer is read after the step, so it costs no time. Memory is followed in the first ``MEASURED_STEPS`` steps,
in the first checkpoint and evaluation, and in every ``train.log_memory_every``-th step, since following every operation
on the CPU is slow.
"""

import contextlib
import functools
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
import torch.distributed as dist

from launcher.job import events
from launcher.spec import RunSpec
from launcher.worker import STOP_SIGNALS, beat, data, memory, metrics, out_of_memory, process, spikes
from launcher.worker.beat import Clock
from launcher.worker.data.corpus import Corpus
from launcher.worker.data.order import Position
from launcher.worker.engine import Context, Engine, EngineBuilder
from launcher.worker.memory import live_bytes
from launcher.worker.metrics import Metrics
from launcher.worker.profile import Profile
from launcher.worker.saving import Checkpoints
from launcher.worker.watch import MemoryLog, Pace, probe, tokens_of

MEASURED_STEPS = 2  # Steps whose memory is followed: the second is the first that has optimizer states from its start.


def run(spec: RunSpec, directory: Path, build: EngineBuilder) -> object:
    """Train one run from its newest checkpoint, or from the start, to its last step.

    An error is written to ``logs/error.rank<r>.json`` and ends the process with status 1. All that the run holds is
    returned, for :func:`launcher.worker.process.main` to keep alive until the process is gone.
    """
    with entered(spec, directory) as entering:
        context, corpus = data.counted(entering)
        with context.memory.measuring("load"):
            engine = build(context)
            context.memory.kept = engine.piles
        training = _Training(context, engine, corpus)
        training.run()
    return training


@contextlib.contextmanager
def entered(spec: RunSpec, directory: Path, backend: str | None = None) -> Iterator[Context]:
    """This rank in its process group, compared with the others, its errors reported; ``backend`` as of the group."""
    pulse = beat.start()  # Before the group: ranks may hang there, too.
    with process.reported(directory), process.group(spec, backend) as place:
        context = Context(
            spec=spec,
            directory=directory,
            rank=place.rank,
            world=place.world,
            device=place.device,
            memory=memory.tracker(place.device, pulse.enter, vocabulary_sizes(spec)),
            beat=pulse,
            clock=Clock(on=place.world > 1),
        )
        context.memory.recomputes = spec.checkpointing.mode != "none"
        with out_of_memory.watched(context):
            probe.probe(context)
            yield context


def vocabulary_sizes(spec: RunSpec) -> frozenset[int]:
    """Sizes of a last dimension that only logits have: whole, and a tensor parallel rank's part."""
    model, ranks = spec.model, spec.parallel.tensor
    whole = model.vocab_size
    queries, keys, up = model.query_size, model.key_value_size, 2 if model.gated else 1
    others = (
        *(model.hidden_size, model.head_size, queries, keys, queries + 2 * keys),  # Some families project all at once.
        *(model.intermediate_size, up * model.intermediate_size),
        *(model.moe_intermediate_size, up * model.moe_intermediate_size, model.num_experts),
        *(model.shared_width, spec.sequence_length),
        *(model.q_lora_rank, model.kv_lora_rank, model.kv_lora_rank + model.qk_rope_head_dim),
        model.num_attention_heads * (model.qk_nope_head_dim + model.qk_rope_head_dim),
        model.num_attention_heads * (model.qk_nope_head_dim + model.v_head_dim),
    )
    taken = {size // share for size in others for share in (1, ranks)}
    return frozenset((whole, -(-whole // ranks))) - taken


class _Training:
    def __init__(self, context: Context, engine: Engine, corpora: Sequence[Corpus] | None = None) -> None:
        self._context, self._spec, self._engine = context, context.spec, engine
        self._agreement = Agreement()
        self._batches = data.batches(context, corpora)
        self._checkpoints = Checkpoints(context, self._batches)
        with context.memory.measuring("load"):
            self._start = self._checkpoints.restore(engine)
        self._restored = self._start.step
        self._metrics = Metrics(context, resumed_at=self._restored)
        self._memory = MemoryLog(context, resumed_at=self._restored)
        self._memory.write(0)
        self._evaluated = False
        self._pace = Pace(context)
        self._profile = Profile(context)

    def run(self) -> None:
        """Do all remaining steps, write the last checkpoint, the export and the outcome."""
        step, interrupted = self._steps()
        self._profile.end(step)
        if (interrupted or self._spec.save.last) and step > self._checkpoints.newest:
            self._save(step, last=True)
        self._context.beat.begin("end")
        self._checkpoints.wait(last=True)
        end(self._context, self._metrics, self._restored, step, None if interrupted else self._engine.export)

    def _steps(self) -> tuple[int, bool]:
        start = self._start
        while True:
            try:
                return self._steps_from(start)
            except spikes.Spike as spike:
                start = self._go_back(spike)

    def _go_back(self, spike: spikes.Spike) -> Position:
        self._agreement.answer()  # Asked before the step that has jumped.
        self._context.beat.begin("checkpoint")
        start = self._checkpoints.go_back(self._engine, spike)
        self._metrics.rewind(start.step)
        self._memory.rewind(start.step)
        if self._context.rank == 0:
            text = f"{spike}; went back to the checkpoint of step {start.step}, and on in the data"
            events.add(self._context.directory, "rollback", text, step=start.step, samples=start.samples)
        return start

    def _steps_from(self, start: Position) -> tuple[int, bool]:
        step, steps, pulse = start.step, self._spec.steps, self._context.beat
        pulse.step(step + 1)
        for step, micro_batches in self._pace.timed(self._batches.training(start, last=steps)):
            self._agreement.ask(writing=self._checkpoints.writing)
            with self._profile.step(step):
                self._step(step, micro_batches)
            pulse.enter("collective")
            agreed = self._agreement.answer()
            self._pace.step(step)
            self._checkpoints.settle(still_writing=agreed.writing)
            if agreed.stop and step < steps:
                return step, True
            if self._due(self._spec.save_every, step) and step < steps:
                self._save(step)
            if step < steps:
                pulse.step(step + 1)
        return step, False

    def _step(self, step: int, micro_batches: list[torch.Tensor]) -> None:
        tracker, measured_until = self._context.memory, self._restored + MEASURED_STEPS
        first, tracker.tokens = step <= measured_until, tokens_of(micro_batches)
        if first or self._memory.due(step):
            known = first or self._spec.train.enforce_memory  # All is followed from the start.
            alive = () if known else live_bytes.tensors_of_process()
            with tracker.measuring("forward", alive, summary=first):
                result = self._engine.train_step(step, micro_batches)
                tracker.rest(self._engine.tensors() if first else (), summary=first)
            self._memory.write(step, tracker.tokens)
        else:
            result = self._engine.train_step(step, micro_batches)
        evaluates = self._due(self._spec.eval_every, step)
        self._metrics.step(step, result, functools.partial(self._evaluate, step) if evaluates else None)
        # ``memory.json`` is there from now on, also for a run that is killed later.
        if step == measured_until:
            metrics.write(self._context, self._restored)
            self._metrics.mark()

    def _evaluate(self, step: int) -> torch.Tensor:
        batches = self._context.beat.each(self._noted(self._batches.held_out()))
        if self._evaluated:
            return self._engine.evaluate(batches)
        self._evaluated = True
        with self._context.memory.measuring("evaluation", self._engine.tensors(), summary=False):
            loss = self._engine.evaluate(batches)
        self._memory.write(step)
        return loss

    def _noted(self, batches: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Tell the tracker the length of each batch of an evaluation, which may differ from training's."""
        for tokens in batches:
            self._context.memory.tokens = tokens_of([tokens])
            yield tokens

    def _save(self, step: int, *, last: bool = False) -> None:
        tracker = self._context.memory
        self._context.beat.begin("checkpoint")
        if tracker.has("checkpoint_save"):
            self._checkpoints.save(self._engine, step, last=last)
        else:
            with tracker.measuring("checkpoint_save", alive=self._engine.tensors()):
                self._checkpoints.save(self._engine, step, last=last)
            self._memory.write(step)
        self._metrics.mark()

    @staticmethod
    def _due(every: int | None, step: int) -> bool:
        return every is not None and step % every == 0


def end(context: Context, numbers: Metrics, restored: int, step: int, export: Callable[[Path], object] | None) -> None:
    """Write the ``export``, if any, and ``memory.json``, and say how the run ended; called by all ranks together."""
    if context.spec.save.export != "none" and export is not None:
        with process.whole_directory(context, context.directory / "export") as partial:
            export(partial)
    metrics.write(context, restored)
    numbers.close()
    dist.barrier()  # The outcome speaks for all ranks.
    if context.rank == 0:
        process.write_outcome(context.directory, "interrupted" if export is None else "finished", step)


class Agreed(NamedTuple):
    """The answer of all ranks: was any asked to stop, and does any still write a checkpoint?"""

    stop: bool
    writing: bool


class Agreement:
    """Decisions that all ranks take alike: two flags in one maximum over CPU tensors, beside a step."""

    def __init__(self) -> None:
        self._stop = False
        self._flags = torch.zeros(2, dtype=torch.int32)
        self._work: dist.Work | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._stop = True

    def ask(self, *, writing: bool) -> None:
        """Start to ask all ranks; ``writing`` is true while this one's part of a checkpoint is not on disk yet."""
        self._flags = torch.tensor([self._stop, writing], dtype=torch.int32)
        self._work = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, async_op=True)

    def answer(self) -> Agreed:
        """The flags of all ranks as of when :meth:`ask` was called."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return Agreed(*map(bool, self._flags.tolist()))
