"""The training loop, the same for every engine: data, steps, evaluation, checkpoints, metrics and a clean end.

Before each step the ranks start to agree on whether one of them was asked to stop and whether a background write is
still running; the answer is read after the step, so it costs no time. Memory is measured in the first
``MEASURED_STEPS`` steps, in the first checkpoint and evaluation, and in every ``train.log_memory_every``-th step, since
tracking every operation on the CPU is slow.
"""

import contextlib
import functools
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
import torch.distributed as dist

from launcher.job import events
from launcher.spec import RunSpec
from launcher.worker import STOP_SIGNALS, beat, data, memory, metrics, out_of_memory, process, spikes
from launcher.worker.beat import BlockTimer, HeartbeatWriter
from launcher.worker.data.corpus import Corpus
from launcher.worker.data.order import Position
from launcher.worker.engine import Context, Engine, EngineBuilder, StepResult
from launcher.worker.memory import live_bytes
from launcher.worker.metrics import Metrics
from launcher.worker.process import RankPlace
from launcher.worker.profile import Profile
from launcher.worker.saving import Checkpoints
from launcher.worker.watch import MemoryLog, SlowRankDetector, probe, tokens_of

MEASURED_STEPS = 2  # Steps whose memory is measured: the second is the first that starts with optimizer states.


def run(spec: RunSpec, directory: Path, build: EngineBuilder) -> object:
    """Train one run from its newest checkpoint, or from the start, to its last step.

    An error is written to ``logs/error.rank<r>.json`` and ends the process with status 1. The returned object holds the
    whole run; :func:`launcher.worker.process.main` keeps it alive until the process exits.
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
    """Enter the process group, report errors, and probe the ranks' speed; ``backend`` as in :func:`process.group`."""
    pulse = beat.start()  # Before the group, where ranks may hang, too.
    with process.reported(directory), process.group(spec, backend) as place:
        context = context_of(spec, directory, place, pulse)
        with out_of_memory.watched(context):
            probe.probe(context)
            yield context


def context_of(spec: RunSpec, directory: Path, place: RankPlace, pulse: HeartbeatWriter) -> Context:
    """The context of this rank, with nothing measured yet."""
    tracker = memory.tracker(place.device, pulse.enter, vocabulary_sizes(spec))
    tracker.recomputes = spec.checkpointing.mode != "none"
    return Context(
        spec=spec,
        directory=directory,
        rank=place.rank,
        world=place.world,
        device=place.device,
        memory=tracker,
        beat=pulse,
        clock=BlockTimer(on=place.world > 1),
    )


def vocabulary_sizes(spec: RunSpec) -> frozenset[int]:
    """Sizes of a last dimension that only logits have: the whole vocabulary, and a tensor parallel rank's part."""
    model, ranks = spec.model, spec.parallel.tensor
    whole = model.vocab_size
    queries, keys, up = model.query_size, model.key_value_size, 2 if model.gated else 1
    others = (
        *(model.hidden_size, model.head_size, queries, keys, queries + 2 * keys),  # Some families have one fused QKV.
        *(model.intermediate_size, up * model.intermediate_size),
        *(model.moe_intermediate_size, up * model.moe_intermediate_size, model.num_experts),
        *(model.shared_width, spec.sequence_length),
        *(model.q_lora_rank, model.kv_lora_rank, model.kv_lora_rank + model.qk_rope_head_dim),
        model.num_attention_heads * (model.qk_nope_head_dim + model.qk_rope_head_dim),
        model.num_attention_heads * (model.qk_nope_head_dim + model.v_head_dim),
    )
    taken = {size // share for size in others for share in (1, ranks)}
    return frozenset((whole, -(-whole // ranks))) - taken


class StepMonitor:
    """Measures the memory of a run's steps, whichever loop trains them; writes nothing."""

    def __init__(self, context: Context, alive: Callable[[], Iterable[torch.Tensor]], *, restored: int = 0) -> None:
        """Start after step ``restored``; ``alive`` returns the tensors that are live between steps."""
        self._context, self._alive, self.restored = context, alive, restored
        self._has_evaluated = False

    @contextlib.contextmanager
    def step(self, step: int, tokens: int | None) -> Iterator[None]:
        """Wrap a step whose largest micro-batch has ``tokens`` tokens: the first steps and those due are measured."""
        tracker, first = self._context.memory, step <= self.restored + MEASURED_STEPS
        tracker.tokens = tokens
        if not first and not self._due(step):
            yield
            return
        known = first or self._context.spec.train.enforce_memory  # Then all tensors are tracked from the start.
        with tracker.measuring("forward", () if known else live_bytes.tensors_of_process(), summary=first):
            yield
            tracker.rest(self._alive() if first else (), summary=first)
        self._write(step, tokens)

    @contextlib.contextmanager
    def evaluation(self, step: int) -> Iterator[None]:
        """Wrap an evaluation; the first one is measured."""
        first, self._has_evaluated = not self._has_evaluated, True
        if not first:
            yield
            return
        with self._context.memory.measuring("evaluation", self._alive(), summary=False):
            yield
        self._write(step)

    def _due(self, step: int) -> bool:
        return False

    def _write(self, step: int, tokens: int | None = None) -> None:
        """Write nothing: the measurements stay in the tracker for its reader to take."""


class StepRecorder(StepMonitor):
    """Writes the metrics and the memory of a run's steps to the run directory; all ranks call it together."""

    def __init__(self, context: Context, alive: Callable[[], Iterable[torch.Tensor]], *, restored: int) -> None:
        super().__init__(context, alive, restored=restored)
        self.metrics = Metrics(context, resumed_at=restored)
        self._log = MemoryLog(context, resumed_at=restored)

    def loaded(self) -> None:
        """Write the memory of loading."""
        self._write(0)
        self.metrics.mark()

    def line(self, step: int, result: StepResult, evaluate: Callable[[], metrics.Losses] | None) -> None:
        """Record a step, with an evaluation if one is due; write ``memory.json`` after the measured steps."""
        self.metrics.step(step, result, evaluate if due(self._context.spec.eval_every, step) else None)
        if step == self.restored + MEASURED_STEPS:  # So that a run that is killed later has it, too.
            metrics.write(self._context, self.restored)
            self.metrics.mark()

    @contextlib.contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Wrap a checkpoint; the first one is measured."""
        tracker = self._context.memory
        self._context.beat.begin("checkpoint")
        if tracker.has("checkpoint_save"):
            yield
        else:
            with tracker.measuring("checkpoint_save", self._alive()):
                yield
            self._write(step)
        self.metrics.mark()

    def rewind(self, step: int) -> None:
        """Remove what was written after ``step``, the checkpoint's step: those steps will be repeated."""
        self.metrics.rewind(step)
        self._log.rewind(step)

    def end(self, step: int, export: Callable[[Path], object] | None) -> None:
        """Write the ``export`` (None: the run was interrupted), ``memory.json``, and how the run ended."""
        context = self._context
        if context.spec.save.export != "none" and export is not None:
            with process.whole_directory(context, context.directory / "export") as partial:
                export(partial)
        metrics.write(context, self.restored)
        self.metrics.close()
        dist.barrier()  # The outcome is for all ranks.
        if context.rank == 0:
            process.write_outcome(context.directory, "interrupted" if export is None else "finished", step)

    def _due(self, step: int) -> bool:
        return self._log.due(step)

    def _write(self, step: int, tokens: int | None = None) -> None:
        self._log.write(step, tokens)


def due(every: int | None, step: int) -> bool:
    """True at every ``every``-th step; never if it is None."""
    return every is not None and step % every == 0


class _Training:
    def __init__(self, context: Context, engine: Engine, corpora: Sequence[Corpus] | None = None) -> None:
        self._context, self._spec, self._engine = context, context.spec, engine
        self._agreement = Agreement()
        self._batches = data.batches(context, corpora)
        self._checkpoints = Checkpoints(context, self._batches.identity)
        with context.memory.measuring("load"):
            self._start = self._checkpoints.restore(engine)
        self._recorded = StepRecorder(context, engine.tensors, restored=self._start.step)
        self._recorded.loaded()
        self._pace = SlowRankDetector(context)
        self._profile = Profile(context)

    def run(self) -> None:
        """Do all remaining steps; write the last checkpoint, the export and the outcome."""
        step, interrupted = self._steps()
        self._profile.end(step)
        if (interrupted or self._spec.save.last) and step > self._checkpoints.newest:
            self._save(step, last=True)
        self._context.beat.begin("end")
        self._checkpoints.wait(last=True)
        self._recorded.end(step, None if interrupted else self._engine.export)

    def _steps(self) -> tuple[int, bool]:
        start = self._start
        while True:
            try:
                return self._steps_from(start)
            except spikes.Spike as spike:
                start = self._go_back(spike)

    def _go_back(self, spike: spikes.Spike) -> Position:
        self._agreement.answer()  # Started before the step whose loss spiked.
        self._context.beat.begin("checkpoint")
        start = self._checkpoints.go_back(self._engine, spike)
        self._recorded.rewind(start.step)
        if self._context.rank == 0:
            text = f"{spike}; rolled back to the checkpoint of step {start.step}, continuing with later data"
            events.add(self._context.directory, "rollback", text, step=start.step, samples=start.samples)
        return start

    def _steps_from(self, start: Position) -> tuple[int, bool]:
        step, steps, pulse = start.step, self._spec.steps, self._context.beat
        pulse.step(step + 1)
        for step, micro_batches in self._pace.timed(self._batches.training(start, last=steps)):
            self._agreement.ask(writing=self._checkpoints.writing)
            with self._profile.step(step):
                with self._recorded.step(step, tokens_of(micro_batches)):
                    result = self._engine.train_step(step, micro_batches)
                self._recorded.line(step, result, functools.partial(self._evaluate, step))
                del result  # Free its tensors before the next step.
            pulse.enter("collective")
            agreed = self._agreement.answer()
            self._pace.step(step)
            self._checkpoints.settle(still_writing=agreed.writing)
            if agreed.stop and step < steps:
                return step, True
            if self._recorded.metrics.is_over:
                return step, False
            if due(self._spec.save_every, step) and step < steps:
                self._save(step)
            if step < steps:
                pulse.step(step + 1)
        return step, False

    def _evaluate(self, step: int) -> metrics.Losses:
        batches = {name: self._with_lengths(self._batches.held_out(name)) for name in self._batches.evaluated}
        with self._recorded.evaluation(step):
            return {name: self._engine.evaluate(self._context.beat.each(each)) for name, each in batches.items()}

    def _with_lengths(self, batches: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Tell the tracker the length of each batch of an evaluation, which may differ from training's."""
        for tokens in batches:
            self._context.memory.tokens = tokens_of([tokens])
            yield tokens

    def _save(self, step: int, *, last: bool = False) -> None:
        with self._recorded.saving(step):
            self._checkpoints.save(self._engine, step, last=last)


class Agreed(NamedTuple):
    """The answer of all ranks: was any asked to stop, and is any still writing a checkpoint?"""

    stop: bool
    writing: bool


class Agreement:
    """Two flags on which all ranks agree: one all-reduce (maximum) of CPU tensors, concurrent with a step."""

    def __init__(self) -> None:
        self._stop = False
        self._flags = torch.zeros(2, dtype=torch.int32)
        self._work: dist.Work | None = None
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._stop = True

    def ask(self, *, writing: bool) -> None:
        """Start the all-reduce; ``writing`` is true while this rank's part of a checkpoint is not on disk yet."""
        self._flags = torch.tensor([self._stop, writing], dtype=torch.int32)
        self._work = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, async_op=True)

    def answer(self) -> Agreed:
        """Wait for the flags of all ranks as they were when :meth:`ask` was called."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return Agreed(*map(bool, self._flags.tolist()))
