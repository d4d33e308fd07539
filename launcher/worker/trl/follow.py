"""A callback for TRL's trainer that adds the launcher's metrics, memory, checkpoints, evaluations and clean end.

The trainer only trains. What else it would do is off in ``trl.yaml`` and done here: the loss, norm and learning rate
that it logs become a line of ``metrics.jsonl``, its own checkpoint (``checkpoint-<step>``) is written inside a folder
that appears complete, and a request to stop ends it after a step.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from launcher.backends.trl.traits import engine_of
from launcher.estimate.memory.moments import Phase
from launcher.worker import loop, replaced
from launcher.worker.engine import Context, PendingSave, StepResult
from launcher.worker.loop import Agreement
from launcher.worker.memory import live_bytes
from launcher.worker.memory.piles import Kept, flat, model_piles
from launcher.worker.metrics import Losses
from launcher.worker.model.adapters import PISSA
from launcher.worker.model.network import numbered, switch_rounding
from launcher.worker.saving import Checkpoints
from launcher.worker.trl.samples import Samples
from launcher.worker.watch import SlowRankDetector


class TrainerHooks(TrainerCallback):  # type: ignore[misc]
    """Records, saves and stops one trainer; every method is called by all ranks together."""

    def __init__(self, context: Context, trainer: Any, samples: Samples) -> None:
        self._context, self._spec, self._trainer = context, context.spec, trainer
        self._engine = _Files(trainer, context.directory / PISSA)
        self._checkpoints = Checkpoints(context, samples.identity)
        self._start = self._checkpoints.restore(self._engine)
        self._step = self._start.step
        if self._spec.task.name != "grpo":
            trainer.train_dataset = samples.stream(trainer.train_dataset, self._start)
        trainer.eval_dataset = samples.held_out(trainer.eval_dataset)
        context.memory.kept = self._engine.piles
        trainer.add_callback(self)
        self._agreement, self._interrupted = Agreement(), False
        self._following = contextlib.ExitStack()  # The load phase, or a step.

    def train(self) -> None:
        """Train to the end; write the last checkpoint, the export and the outcome."""
        context, trainer = self._context, self._trainer
        self._recorded = loop.StepRecorder(context, live_bytes.tensors_of_process, restored=self._start.step)
        self._pace = SlowRankDetector(context)
        if self._spec.adapter.name != "none":  # peft would widen an adapter that TRL has made 16-bit as it loads it.
            trainer.model.load_adapter = partial(trainer.model.load_adapter, autocast_adapter_dtype=False)
        with self._phases(), replaced(trainer, "_save_checkpoint", lambda model, trial: self._save()):
            if self._step < self._spec.steps:
                self._following.enter_context(context.memory.measuring("load", live_bytes.tensors_of_process()))
                trainer.train(resume_from_checkpoint=self._engine.resumed)
        if (self._interrupted or self._spec.save.last) and self._step > self._checkpoints.newest:
            self._save(last=True)
        context.beat.begin("end")
        self._checkpoints.wait(last=True)
        self._recorded.end(self._step, None if self._interrupted else self._engine.export)

    @contextlib.contextmanager
    def _phases(self) -> Iterator[None]:
        trainer = self._trainer
        forward = self._entering("forward", trainer.training_step)
        backward = self._entering("backward", trainer.accelerator.backward)
        with replaced(trainer, "training_step", forward), replaced(trainer.accelerator, "backward", backward):
            yield

    def _entering(self, phase: Phase, call: Callable[..., Any]) -> Callable[..., Any]:
        def entered(*arguments: Any, **options: Any) -> Any:
            self._context.memory.enter(phase)
            return call(*arguments, **options)

        return entered

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the load phase: the model is wrapped by now, and its blocks get their hooks."""
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        blocks = numbered(model.get_base_model() if hasattr(model, "get_base_model") else model)
        self._context.clock.follow(blocks.values(), self._context.device)
        self._context.memory.layers.follow(blocks)
        if engine_of(self._spec) == "deepspeed":  # It steps at the end of accelerate's backward pass.
            engine = self._trainer.accelerator.deepspeed_engine_wrapped.engine
            engine.step = self._entering("optimizer", engine.step)
        self._following.close()
        self._recorded.loaded()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin a step, and start to ask all ranks whether to stop."""
        self._context.beat.step(state.global_step + 1)
        self._rate = self._trainer._get_learning_rate()  # With DeepSpeed the trainer logs the next step's.
        self._agreement.ask(writing=self._checkpoints.writing)
        switch_rounding(self._trainer.model, self._spec, state.global_step + 1)
        tokens = self._spec.sequences_at_once * self._spec.sequence_length
        self._following.enter_context(self._recorded.step(state.global_step + 1, tokens))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Enter the optimizer phase."""
        self._context.memory.enter("optimizer")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """End a step, and tell the trainer whether to save or stop."""
        self._step = state.global_step
        self._following.close()
        agreed = self._agreement.answer()
        self._pace.step(self._step)
        self._checkpoints.settle(still_writing=agreed.writing)
        if agreed.stop and self._step < self._spec.steps:
            self._interrupted = control.should_training_stop = True
        due = loop.due(self._spec.save_every, self._step)
        control.should_save = due and self._step < self._spec.steps and not self._interrupted
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:
        """Record a step, with an evaluation if one is due; ignore what an evaluation logs."""
        if "loss" not in logs or "learning_rate" not in logs:
            return
        result = StepResult(
            loss=torch.tensor(logs["loss"]),
            grad_norm=torch.tensor(logs["grad_norm"]) if "grad_norm" in logs else None,
            learning_rate=self._rate,
        )
        self._recorded.line(state.global_step, result, self._evaluate)
        if self._recorded.metrics.is_over:
            control.should_training_stop = True

    def _evaluate(self) -> Losses:
        self._context.beat.begin("evaluation")
        with self._recorded.evaluation(self._step):
            found = self._trainer.evaluate()
        return {name: torch.tensor(float(found[f"eval_{name}_loss"])) for name in self._trainer.eval_dataset}

    def _save(self, *, last: bool = False) -> None:
        with self._recorded.saving(self._step):
            self._checkpoints.save(self._engine, self._step, last=last)


class _Files:
    """The trainer's own checkpoints and exports, with the interface that the launcher's checkpoints use."""

    def __init__(self, trainer: Any, start: Path) -> None:
        self._trainer, self._start = trainer, start
        self._write: Callable[[Any, Any], None] = trainer._save_checkpoint
        self.resumed: str | None = None

    def save(self, directory: Path) -> PendingSave | None:
        """Have the trainer write ``checkpoint-<step>`` to a folder: weights, optimizer, schedule and trainer state."""
        with replaced(self._trainer, "_get_output_dir", lambda trial=None: str(directory)):
            self._write(self._trainer.model, None)
        return None

    def load(self, directory: Path) -> None:
        """Remember the checkpoint to resume from; the trainer reads it when it starts."""
        self.resumed = str(next(directory.glob("checkpoint-*")))

    def export(self, directory: Path) -> None:
        """Write the model, or its adapter, for ``transformers`` or ``peft`` to load."""
        plugin = getattr(self._trainer.accelerator.state, "fsdp_plugin", None)
        if plugin is not None:
            plugin.set_state_dict_type("FULL_STATE_DICT")
        self._trainer.save_model(str(directory))
        if self._start.is_dir() and self._trainer.args.should_save:
            model = self._trainer.accelerator.unwrap_model(self._trainer.model)
            model.save_pretrained(str(directory), path_initial_model_for_weight_conversion=str(self._start))

    def piles(self) -> Iterable[Kept]:
        """Tensors that the trainer keeps, by pile."""
        yield from model_piles([self._trainer.model])
        if (reference := getattr(self._trainer, "ref_model", None)) is not None:
            yield "parameters", list(reference.parameters())
        optimizer = self._trainer.optimizer
        yield "optimizer_states", list(flat(getattr(getattr(optimizer, "optimizer", optimizer), "state", {})))
