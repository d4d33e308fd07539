"""``metrics.jsonl``: one line per logged step, written by rank 0 and also sent to an experiment tracker.

Reading the loss waits for the device, so it happens only on logged steps; every rank reads it then, since all of them
must stop if it is not finite. A resumed run first removes the lines of steps after its checkpoint. At the end the
memory summaries of all ranks become ``memory.json``.
"""

import contextlib
import importlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
import torch.distributed as dist

from launcher.base import package
from launcher.base.files import json_lines, load_json, write_atomically
from launcher.job import events
from launcher.worker import TrainingError, files, spikes
from launcher.worker.engine import Context, StepResult

SMALLEST_SCALE = 1.0  # As in DeepSpeed and Megatron-LM (``min_loss_scale``): below it gradients only vanish.

type Losses = Mapping[str, torch.Tensor]
"""Losses of one evaluation by data set name, "" for an unnamed one."""


def is_spent(patience: int | None, losses: list[float]) -> bool:
    """True if the last ``patience`` of these evaluation losses have found no lower one; never for None."""
    return patience is not None and bool(losses) and len(losses) - 1 - losses.index(min(losses)) >= patience


class Metrics:
    """Writes the run's metrics. Only rank 0 has a file; every rank checks the loss and stops if it is not finite."""

    def __init__(self, context: Context, *, resumed_at: int) -> None:
        """Open the file after step ``resumed_at``: later lines belong to steps that will be repeated."""
        self._context = context
        self._file: IO[str] | None = None
        self._losses = spikes.SpikeDetector(context.spec.train.spike_deviations)
        self._skipped = 0
        self._tracker = _Tracker()
        self._predicted = _predicted(context.directory)
        if context.rank == 0:
            self._tracker = _TRACKERS[context.spec.tracking.kind](context)
            self._open(resumed_at)
        self._evaluated = self._earlier_losses()
        self.mark()

    def _open(self, step: int) -> None:
        path = self._context.directory / "metrics.jsonl"
        files.cut(path, step)
        self._file = path.open("a")

    def _earlier_losses(self) -> list[float]:
        """Losses of earlier evaluations from rank 0's file, shared with all ranks if ``train.patience`` needs them."""
        decides, shared = self._context.spec.train.patience is not None, [list[float]()]
        if decides and self._context.rank == 0:
            lines = json_lines(self._context.directory / "metrics.jsonl")
            shared = [[line["eval_loss"] for line in lines if "eval_loss" in line]]
        if decides and self._context.world > 1:
            dist.broadcast_object_list(shared)
        return shared[0]

    @property
    def is_over(self) -> bool:
        """True if the run stops early, because evaluations found no lower loss."""
        return is_spent(self._context.spec.train.patience, self._evaluated)

    def mark(self) -> None:
        """Restart the clock of the next step; called after work that belongs to no step."""
        self._since, self._steps = time.perf_counter(), 0
        self._context.memory.followed = False

    def step(self, step: int, result: StepResult, evaluate: Callable[[], Losses] | None = None) -> None:
        """Record a step, with the losses of ``evaluate`` if it is due; TrainingError or Spike if the loss spiked."""
        self._steps += 1
        spec = self._context.spec
        shown = step % spec.train.log_every == 0 or step == spec.steps or evaluate is not None
        if not shown and (spec.save_every is None or step % spec.save_every):
            return
        loss, norm = float(result.loss), math.nan if result.grad_norm is None else float(result.grad_norm)
        seconds = (time.perf_counter() - self._since) / self._steps
        # In fp16 a step whose gradients overflow is skipped, so its norm says nothing about the weights.
        self._judge(step, loss, 0.0 if result.grad_norm is None or spec.precision.compute == "fp16" else norm)
        if not shown:  # It is judged because it is saved: no checkpoint has weights that diverged.
            return
        line: dict[str, float | None] = {
            "step": step,
            "loss": loss,
            "grad_norm": norm if math.isfinite(norm) else None,
            "learning_rate": result.learning_rate,
            "tokens_per_second": round(self._context.spec.tokens_per_step / seconds, 1),
            **self._predicted,
            "step_seconds": round(seconds, 6),
            "time": round(time.time(), 3),
            "memory_bytes": _memory_bytes(self._context),
        }
        if result.loss_scale is not None:
            line["loss_scale"] = self._check_scale(step, float(result.loss_scale.scale), int(result.loss_scale.skipped))
        if self._context.memory.followed:
            line["followed"] = True
        if evaluate is not None:
            line |= self._held_out(evaluate())
        if self.is_over and self._context.rank == 0:
            text = f"train.patience={self._context.spec.train.patience} evaluations found no lower loss: the run ends"
            events.add(self._context.directory, "patience", text, step=step, over=True)
        self._write(line)
        self.mark()

    def _held_out(self, losses: Losses) -> dict[str, float | None]:
        """The mean loss over the data sets, which decides early stopping, each set's own loss, and their perplexities.

        A loss that is not a mean cross entropy over tokens has no perplexity: tasks on rows, and TRL's loss variants.
        """
        named = {f"/{name}": float(loss) for name, loss in losses.items() if name}
        found = {"": statistics.fmean(map(float, losses.values())), **named}
        self._evaluated.append(found[""])
        line: dict[str, float | None] = {f"eval_loss{name}": loss for name, loss in found.items()}
        task = self._context.spec.task
        if not task.rows and task.loss in (None, "nll"):
            most = math.log(sys.float_info.max)  # Beyond it the exponential overflows.
            line |= {f"eval_perplexity{name}": math.exp(x) if x < most else None for name, x in found.items()}
        return line

    def _judge(self, step: int, loss: float, norm: float) -> None:
        """Act as ``train.on_spike`` says if the loss spiked; a loss or norm that is not finite ends or rolls back."""
        train, values = self._context.spec.train, {"loss": loss, "gradient norm": norm}
        lost = [spikes.divergence_text(step, *each) for each in values.items() if not math.isfinite(each[1])]
        if (text := lost[0] if lost else self._losses.jump(step, loss)) is None:
            return
        if self._context.rank == 0:
            events.add(self._context.directory, "spike", text, step=step, loss=loss if math.isfinite(loss) else None)
        if train.on_spike == "rollback":
            raise spikes.Spike(step, loss, text)
        if lost:
            raise TrainingError(text, "nan")
        if train.on_spike == "stop":
            raise TrainingError(f"{text}; train.on_spike=stop: the last checkpoint is from before", "nan")
        self._losses.forget()

    def _check_scale(self, step: int, scale: float, skipped: int) -> float:
        new, self._skipped = skipped - self._skipped, skipped
        if new:
            which = f"step {step} was" if self._steps == 1 else f"of {self._steps} steps up to {step} {new} were"
            text = f"{which} skipped: gradients overflowed in fp16; the loss scale is now {scale:g}"
            if self._context.rank == 0:
                events.add(self._context.directory, "skipped", text, step=step, over=True, loss_scale=scale)
            if scale < SMALLEST_SCALE:
                raise TrainingError(f"{text}, and no scale helps: try precision=bf16 or a lower optimizer.lr", "nan")
        return scale

    def rewind(self, step: int) -> None:
        """Remove the lines after ``step``, the checkpoint's step: those steps will be repeated."""
        if self._file is not None:
            self._file.close()
            self._open(step)
        self._evaluated = self._earlier_losses()
        self.mark()

    def close(self) -> None:
        """Close the file and the tracker."""
        self._tracker.close()
        if self._file is not None:
            self._file.close()

    def _write(self, line: dict[str, float | None]) -> None:
        if self._file is None:
            return
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        numbers = {key: value for key, value in line.items() if key not in ("step", "time") and value is not None}
        self._tracker.log(numbers, line["step"])


def _predicted(directory: Path) -> dict[str, float]:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        plan = load_json(directory / "plan.json")
        return {"predicted_tokens_per_second": round(float(plan["speed"]["tokens_per_second"]), 1)}
    return {}


def _memory_bytes(context: Context) -> int:
    if (peak := context.memory.peak_of_line()) is not None:
        return peak
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])  # statm counts pages of 4096 bytes.


def write(context: Context, restored: int) -> None:
    """Gather every rank's summary and write ``memory.json``; called by all ranks together."""
    ranks: list[object] = [None] * context.world
    dist.all_gather_object(ranks, {"rank": context.rank, **context.memory.summary()})
    if context.rank == 0:
        facts = {"schema": 1, "device": context.device.type, "method": context.memory.method, "restored": restored}
        write_atomically(context.directory / "memory.json", {**facts, "ranks": ranks})


class _Tracker(NamedTuple):
    log: Callable[[dict[str, float], float | None], object] = lambda numbers, step: None
    close: Callable[[], object] = lambda: None


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        way_out = f"{package.install('tracking')}, or tracking=none"
        raise TrainingError(f"tracking={name} needs a package that is not installed: {way_out}") from None


def _tensorboard(context: Context) -> _Tracker:
    _package("tensorboard")
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(context.directory / "tensorboard"))

    def log(numbers: dict[str, float], step: float | None) -> None:
        for key, value in numbers.items():
            writer.add_scalar(key, value, step)

    return _Tracker(log, writer.close)


def _wandb(context: Context) -> _Tracker:
    wandb = _package("wandb")
    tracking, name = context.spec.tracking, context.directory.name
    settings = wandb.Settings(base_url=tracking.uri) if tracking.uri else None
    # The directory's name is the id, so a resumed run continues the same run in Weights & Biases.
    run = wandb.init(
        project=tracking.project, name=name, id=name, resume="allow", dir=str(context.directory), settings=settings
    )
    return _Tracker(lambda numbers, step: run.log(numbers, step=step), run.finish)


def _mlflow(context: Context) -> _Tracker:
    mlflow = _package("mlflow")
    tracking = context.spec.tracking
    if tracking.uri is not None:
        mlflow.set_tracking_uri(tracking.uri)
    if tracking.project is not None:
        mlflow.set_experiment(tracking.project)
    mlflow.start_run(run_name=context.directory.name)
    return _Tracker(lambda numbers, step: mlflow.log_metrics(numbers, step=step), mlflow.end_run)


_TRACKERS = {"none": lambda _: _Tracker(), "tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
