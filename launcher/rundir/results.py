"""Results of a run from ``metrics.jsonl`` and ``memory.json``: its progress, speed, memory and losses.

Runs with the same data are ranked by held-out loss; by training loss only if their steps also have equally many tokens,
since a larger batch sees more of the data in the same number of steps.
"""

import itertools
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from launcher.base import files, typed
from launcher.base.errors import LauncherError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.data import token_folder
from launcher.rundir import contents
from launcher.saved import checkpoints
from launcher.spec.parse import parse

METRICS = "metrics.jsonl"
EVALUATION = "evaluation.json"  # The results of lm-evaluation-harness on the exported model, or the error.
_END_BYTES = 65536
_RECENT = 20  # Lines over which the step time is averaged, for the time left.
BETWEEN = "between steps"  # The phase of memory that persists from step to step.

_SHOWN = (("loss", "loss", ".4f"), ("grad_norm", "gradient norm", ".3f"), ("learning_rate", "learning rate", ".2e"))
"""Keys of a line of metrics that users see, with their names and formats."""

_ROUNDED = 0.1  # Tokens a second: more than the rounding error of a prediction written with one decimal.


def steps(run: Path) -> list[JsonObject]:
    """The complete lines of ``metrics.jsonl`` for training steps; none if there is no such file."""
    return list(training(files.last_lines(run / "metrics.jsonl")))


def training(lines: Iterable[str]) -> Iterator[JsonObject]:
    """The lines of metrics with a loss; if a user's script omits the step, lines are counted."""
    count = 0
    for row in files.json_objects(lines):
        if is_number(row.get("loss")):
            count += 1
            step = row.get("step")
            yield {**row, "step": int(step) if typed.is_number(step) else count}


def is_number(value: object) -> bool:
    """True for a number, including NaN and infinity; a script may write anything."""
    return isinstance(value, float) or typed.is_whole(value)


def speed(found: Sequence[JsonObject], predicted: "PredictedSpeed | None" = None) -> float | None:
    """Tokens/s of all ranks, the median of the second half of the lines written under the prediction, or None."""
    known = second_half(found, predicted)
    return float(statistics.median(row["tokens_per_second"] for row in known)) if known else None


def second_half(found: Sequence[JsonObject], predicted: "PredictedSpeed | None" = None) -> list[JsonObject]:
    """The lines from which a run's speed is taken, with the arguments of :func:`speed`."""
    rows = [] if predicted is None else [row for row in found if _is_of(row, predicted)]
    known = [row for row in rows or found if typed.is_number(row.get("tokens_per_second"))]
    half = known[len(known) // 2 :]
    return [row for row in half if not row.get("followed")] or half  # Following memory slows a step down.


class PredictedSpeed(NamedTuple):
    """The speed that the plan of a run predicts."""

    tokens_per_second: float  # Of all ranks together.
    per_gpu: float  # Tokens/s of one GPU.
    low: float  # The lower end of the band around ``per_gpu``.
    high: float  # The upper end.
    step_seconds: float  # Time of an optimizer step.


def _is_of(row: JsonObject, predicted: PredictedSpeed) -> bool:
    """True if a line was written under this prediction, which its worker rounds (``launcher.worker.metrics``)."""
    said = row.get("predicted_tokens_per_second")
    return typed.is_number(said) and abs(float(said) - predicted.tokens_per_second) < _ROUNDED


def predicted_speed(run: Path) -> PredictedSpeed | None:
    """The speed in the plan; None if unknown, as on a CPU."""
    found = contents.known(run, contents.PLAN).get("speed") or {}
    keys = ("tokens_per_second", "tokens_per_second_per_gpu", "low", "high", "step_seconds")
    values = [float(value) for key in keys if typed.is_number(value := found.get(key)) and value > 0]
    return PredictedSpeed(*values) if len(values) == len(keys) else None


def predicted_peak(run: Path) -> int | None:
    """The allocated peak of the worst rank predicted in the plan, in bytes; None if unknown."""
    size = (contents.known(run, contents.PLAN).get("peak") or {}).get("allocated_bytes")
    return size if typed.is_whole(size) else None


def predicted_phases(run: Path) -> dict[str, int]:
    """The predicted peak of each phase in the plan; for a run resumed from a checkpoint, including its load."""
    found = contents.known(run, contents.PLAN).get("phases") or {}
    if not was_restored(run) or not found:
        return found
    from launcher.preflight import assess, findings  # Late, because most runs are not resumed.

    try:
        spec = contents.spec_of(run)
        if spec.judges_no_model or findings.errors(spec):
            return found
        return {**found, "load": assess.estimated(assess.going_on(spec)).phases["load"]}
    except LauncherError:  # The record is damaged, or an extension that the run needs is not installed here.
        return found


def was_restored(run: Path) -> bool:
    """True if the measured load phase loaded a checkpoint."""
    return contents.known(run, contents.MEMORY).get("restored", 0) not in (0, None)


def measured(run: Path) -> dict[str, int]:
    """The maximum over the ranks for each phase and for memory between two steps, in bytes."""
    worst: dict[str, int] = {}
    for rank in contents.known(run, contents.MEMORY).get("ranks", ()):
        phases = rank.get("phases")
        sizes = {**(phases if isinstance(phases, dict) else {}), BETWEEN: rank.get("static_bytes")}
        for phase, size in sizes.items():
            if typed.is_whole(size):
                worst[phase] = max(worst.get(phase, 0), size)
    return worst


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run; None for figures that are unknown, or not known yet."""

    step: int | None  # The last step with a line of metrics.
    steps: int | None  # The total number of steps; None for a user's script.
    loss: float | None  # The loss in the last line.
    tokens_per_second: float | None  # The speed of all ranks together in the last line.
    # Time to the last step at the speed of the last lines, without evaluations and checkpoints; before the first line
    # at the speed that the plan predicts.
    seconds_left: float | None
    left_is: Literal["measured", "predicted"] | None  # The origin of ``seconds_left``; None if that is unknown.
    checkpoint_step: int | None  # The step of the newest complete checkpoint.
    evaluation: JsonObject | None = field(default=None, hash=False)  # The last one, in the form of :func:`evaluation`.


def read_progress(run: Path) -> Progress:
    """The progress of a run."""
    lines = _tail(run, _RECENT)
    rows = _last_rows(lines, _RECENT)
    last, steps, saved = rows[-1] if rows else {}, last_step_of(run), newest_checkpoint(run)
    measured = seconds_left(rows, steps)
    plan = None if rows or steps is None else predicted_speed(run)
    evaluated = (line for line in lines if '"eval_loss"' in line)
    predicted = None if plan is None or steps is None else max(0, steps - (saved or 0)) * plan.step_seconds
    return Progress(
        step=_step(last),
        steps=steps,
        loss=number(last, "loss"),
        tokens_per_second=number(last, "tokens_per_second"),
        seconds_left=predicted if measured is None else measured,
        left_is="measured" if measured is not None else "predicted" if predicted is not None else None,
        checkpoint_step=saved,
        evaluation=last_evaluation([*rows_of(evaluated)]),
    )


def newest(run: Path, count: int) -> list[JsonObject]:
    """The last complete lines of ``metrics.jsonl`` with a step, oldest first."""
    return _last_rows(_tail(run, count), count)


def _tail(run: Path, count: int) -> list[str]:
    """The end of ``metrics.jsonl``, large enough for so many lines."""
    return files.last_lines(run / METRICS, max(_END_BYTES, 512 * count))


def _last_rows(lines: Sequence[str], count: int) -> list[JsonObject]:
    return list(itertools.islice(rows_of(reversed(lines)), count))[::-1]


def rows_of(lines: Iterable[str]) -> Iterator[JsonObject]:
    """The complete lines that have a step."""
    return (row for row in files.json_objects(lines) if _step(row) is not None)


def last_step_of(run: Path) -> int | None:
    """The number of steps of a run; None for a user's script, which decides by itself."""
    spec = contents.known(run, contents.SPEC)
    train = spec.get("train", {})
    steps = train.get("steps")
    counted = (files.read_json(run / token_folder.POINTER) or {}).get("steps")
    if steps is None and counted is not None:
        return counted if typed.is_whole(counted) else None
    if steps is None and (train.get("tokens") is not None or train.get("epochs") is not None):
        whole = contents.known_spec(run)
        steps = None if whole is None else whole.steps
    return steps if spec.get("script") is None and typed.is_whole(steps) else None


def seconds_left(rows: Sequence[Mapping[str, Any]], steps: int | None) -> float | None:
    """Seconds to the last step at the mean speed of some lines, without evaluations and checkpoints."""
    speeds = [seconds for row in rows[-_RECENT:] if (seconds := number(row, "step_seconds")) is not None]
    if steps is None or not speeds:
        return None
    return max(0, steps - int(rows[-1]["step"])) * sum(speeds) / len(speeds)


def newest_checkpoint(run: Path) -> int | None:
    """The step of the newest complete checkpoint, from which a resumed run continues."""
    found = checkpoints.whole_checkpoints(run)
    return found[-1].step if found else None


def metrics_line(row: Mapping[str, Any], steps: int | None) -> str:
    """A line of metrics for the user: its step, and if known losses, gradient norm, learning rate and speed."""
    of = "" if steps is None else f"/{steps}"
    parts = [f"step {row['step']}{of}"]
    for key, name, form in _SHOWN:
        value = number(row, key)
        if value is not None:
            parts.append(f"{name} {value:{form}}".strip())
    if (found := evaluation(row)) is not None:
        parts.insert(2, evaluation_text(found))
    speed = number(row, "tokens_per_second")
    if speed is not None:
        parts.append(f"{speed:,.0f} tokens/s")
    return "  ".join(parts)


_OF_A_SET = "eval_loss/"  # Prefix of the keys of losses on named data sets.


def eval_sets(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The keys of evaluation losses, by the name of their data set."""
    return {key.removeprefix(_OF_A_SET): key for row in rows for key in row if key.startswith(_OF_A_SET)}


def evaluation(row: Mapping[str, Any]) -> JsonObject | None:
    """The evaluation in a line: loss and perplexity, with several data sets their means and each one's by name."""
    found = {
        name: {key: number(row, f"eval_{key}{name and '/'}{name}") for key in ("loss", "perplexity")}
        for name in ("", *eval_sets([row]))
    }
    mean = found.pop("")
    return None if mean["loss"] is None else {"step": _step(row), **mean, "sets": found}


def last_evaluation(rows: Sequence[Mapping[str, Any]]) -> JsonObject | None:
    """The last evaluation in some lines; None if there is none."""
    return next(filter(None, map(evaluation, reversed(rows))), None)


def evaluation_text(found: Mapping[str, Any]) -> str:
    """An evaluation in words: ``held-out loss 2.25 (perplexity 9.488): code 2.1 (8.166), math 2.4 (11.02)``."""
    perplexity = "" if found["perplexity"] is None else f" (perplexity {found['perplexity']:.5g})"
    sets = (
        f"{name} {one['loss']:.4f}" + ("" if one["perplexity"] is None else f" ({one['perplexity']:.5g})")
        for name, one in found["sets"].items()
        if one["loss"] is not None
    )
    return f"held-out loss {found['loss']:.4f}{perplexity}" + (f": {text}" if (text := ", ".join(sets)) else "")


def number(row: Mapping[str, Any], key: str) -> float | None:
    """A value of a line as a finite number; None if it is not one."""
    value = row.get(key)
    return float(value) if typed.is_number(value) else None


def _step(row: Mapping[str, Any]) -> int | None:
    value = row.get("step")
    return value if typed.is_whole(value) else None


FIRST_LOSSES = 20  # Lines of ``metrics.jsonl`` that a lock holds: enough to tell one run from another.
LOSSES = "losses:"  # Their key in the lock.


def add_losses(run: Path) -> None:
    """Add the first losses of a run to its lock, unless the lock has them already."""
    path = run / contents.LOCK
    try:
        text, lines = files.read_text(path, files.MOST_OF_A_RECORD), files.last_lines(run / "metrics.jsonl")
    except OSError:
        return
    rows = [_row(row) for row in itertools.islice(training(lines), FIRST_LOSSES)]
    head, mark, _ = text.rpartition(f"{LOSSES} []\n")
    if mark and rows:
        files.write_text_atomically(path, f"{head}{LOSSES}\n" + "".join(map(as_line, rows)))


def as_line(row: Mapping[str, Any]) -> str:
    """A row as a YAML item; YAML spells NaN and infinity differently from JSON, and an fp16 run may start with them."""
    return f"- {json.dumps(dict(row)).replace('NaN', '.nan').replace('Infinity', '.inf')}\n"


def _row(content: Mapping[str, Any]) -> JsonObject:
    norm = content.get("grad_norm")
    return {"step": content["step"], "loss": content["loss"], "grad_norm": norm if is_number(norm) else None}


MEAN = "mean of the last tenth of the logged steps"
"""The lines whose mean is taken as the loss of a run, since single lines scatter."""

_NO_SAMPLES = ("workers", "preview")  # Keys of ``data`` that do not affect samples.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The data of a run, and its losses."""

    data: str  # Its data and sequence length, to compare with those of others.
    tokens: int | None  # Tokens per step; None if unknown.
    held_out: float | None  # The last loss on held-out samples.
    training: float | None  # The mean loss over the last tenth of the logged steps.


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The kind of loss by which runs are ranked, or None and the reason."""

    kind: Literal["held_out", "training"] | None
    why: str = ""

    def loss(self, run: Trained | None) -> float | None:
        """A run's loss of this kind; None if unknown."""
        return None if run is None or self.kind is None else getattr(run, self.kind)

    @property
    def words(self) -> str:
        """The lowest loss as the start of a sentence."""
        return "lowest held-out loss" if self.kind == "held_out" else f"lowest loss ({MEAN})"


def trained_on(run: Path, rows: Sequence[Mapping[str, Any]]) -> Trained:
    """The data and losses of a run, from its lines of metrics; a user's script chooses its data itself."""
    spec = contents.known(run, contents.SPEC)
    data, train = spec.get("data") or {}, spec.get("train") or {}
    samples = {key: value for key, value in data.items() if key not in _NO_SAMPLES}
    held_out = [row["eval_loss"] for row in rows if typed.is_number(row.get("eval_loss"))]
    return Trained(
        data=json.dumps([samples, train.get("sequence_length"), spec.get("script")], sort_keys=True, default=str),
        tokens=tokens_per_step(spec),
        held_out=held_out[-1] if held_out else None,
        training=training_loss(rows),
    )


def tokens_per_step(content: Mapping[str, Any]) -> int | None:
    """Tokens in a global batch of a recorded specification; None for a script or a damaged record."""
    try:
        spec = parse(json.loads(json.dumps(content)))
    except LauncherError:
        return None
    return None if spec.script is not None else spec.global_batch_size * spec.sequence_length


def ranking_basis(runs: Iterable[Trained]) -> Basis:
    """The loss by which runs are ranked, among those that have any."""
    found = [run for run in runs if run.training is not None]
    if len({run.data for run in found}) > 1:
        return Basis(kind=None, why="their data or sequence lengths differ")
    if found and all(run.held_out is not None for run in found):
        return Basis(kind="held_out")
    sizes = sorted({run.tokens for run in found if run.tokens is not None})
    if len(sizes) > 1:
        way = "train.eval_every gives them losses on the same held-out samples"
        return Basis(kind=None, why=f"a step has {sizes[0]:,} to {sizes[-1]:,} tokens; {way}")
    return Basis(kind="training")


def loss(found: Sequence[JsonObject]) -> float:
    """The loss that a sampler minimises: the last held-out loss, else the mean over the last tenth of steps."""
    held_out = [row["eval_loss"] for row in found if is_number(row.get("eval_loss"))]
    if held_out:
        return float(held_out[-1])
    return training_loss(found) or 0.0


def training_loss(found: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean loss over the last tenth of the lines, at least one, as single lines scatter; None without lines."""
    last = [row["loss"] for row in found[-max(1, len(found) // 10) :]]
    return float(sum(last) / len(last)) if last else None


def closing_loss(found: Sequence[Mapping[str, Any]]) -> str:
    """The final training loss of a run as text: the mean over the last tenth of its lines."""
    count = max(1, len(found) // 10)
    return f"{training_loss(found):.4f}" + (f" (mean of the last {count} lines)" if count > 1 else "")
