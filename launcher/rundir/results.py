"""Results of a run from ``metrics.jsonl`` and ``memory.json``: how far it has come, its speed, its memory, its losses.

Runs are ranked by held-out losses where the data are the same; by losses of training where a step has as many tokens,
too, since a larger batch sees more of the data in as many steps.
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
EVALUATION = "evaluation.json"  # What lm-evaluation-harness found of the exported model, or the error.
_END_BYTES = 65536
_RECENT = 20  # Lines over which the speed of a step is taken, for the time that is left.
BETWEEN = "between steps"  # The phase of the state that stays from step to step.

_SHOWN = (
    ("loss", "loss", ".4f"),
    ("grad_norm", "gradient norm", ".3f"),
    ("learning_rate", "learning rate", ".2e"),
)
"""Keys of a line of metrics that a person is shown, with their names and forms."""

_ROUNDED = 0.1  # Tokens a second: more than what is lost where a prediction is written with one decimal.


def steps(run: Path) -> list[JsonObject]:
    """The whole lines of ``metrics.jsonl`` that belong to a training step; none where there is no such file."""
    return list(training(files.last_lines(run / "metrics.jsonl")))


def training(lines: Iterable[str]) -> Iterator[JsonObject]:
    """The lines of metrics that hold a loss; a user's script may leave out all else, and a step is then counted."""
    count = 0
    for row in files.json_objects(lines):
        if is_number(row.get("loss")):
            count += 1
            step = row.get("step")
            yield {**row, "step": int(step) if typed.is_number(step) else count}


def is_number(value: object) -> bool:
    """True for a number, NaN and infinity among them; a script may write anything."""
    return isinstance(value, float) or typed.is_whole(value)


def speed(found: Sequence[JsonObject], predicted: "PredictedSpeed | None" = None) -> float | None:
    """Tokens a second of all ranks, the median of the second half of the lines of the prediction, or None."""
    known = second_half(found, predicted)
    return float(statistics.median(row["tokens_per_second"] for row in known)) if known else None


def second_half(found: Sequence[JsonObject], predicted: "PredictedSpeed | None" = None) -> list[JsonObject]:
    """The lines from which a run's speed is taken; the arguments are as for :func:`speed`."""
    rows = [] if predicted is None else [row for row in found if _is_of(row, predicted)]
    known = [row for row in rows or found if typed.is_number(row.get("tokens_per_second"))]
    half = known[len(known) // 2 :]
    return [row for row in half if not row.get("followed")] or half  # Following its memory takes time of a step.


class PredictedSpeed(NamedTuple):
    """The speed that the plan of a run predicts."""

    tokens_per_second: float  # Of all ranks together.
    per_gpu: float  # Of one GPU.
    low: float  # The lower end of the band around ``per_gpu``.
    high: float  # The upper end.
    step_seconds: float  # Of an optimizer step.


def _is_of(row: JsonObject, predicted: PredictedSpeed) -> bool:
    """True if a line was written under this prediction, which its worker rounds (``launcher.worker.metrics``)."""
    said = row.get("predicted_tokens_per_second")
    return typed.is_number(said) and abs(float(said) - predicted.tokens_per_second) < _ROUNDED


def predicted_speed(run: Path) -> PredictedSpeed | None:
    """The speed of the plan; None where it is unknown, as on a CPU."""
    found = contents.known(run, contents.PLAN).get("speed") or {}
    keys = ("tokens_per_second", "tokens_per_second_per_gpu", "low", "high", "step_seconds")
    values = [float(value) for key in keys if typed.is_number(value := found.get(key)) and value > 0]
    return PredictedSpeed(*values) if len(values) == len(keys) else None


def predicted_peak(run: Path) -> int | None:
    """Bytes of the predicted peak of allocations on the worst rank by the plan; None where it is unknown."""
    size = (contents.known(run, contents.PLAN).get("peak") or {}).get("allocated_bytes")
    return size if typed.is_whole(size) else None


def predicted_phases(run: Path) -> dict[str, int]:
    """The predicted peak of each phase by the plan; of a run that has gone on from a checkpoint, with its load."""
    found = contents.known(run, contents.PLAN).get("phases") or {}
    if not was_restored(run) or not found:
        return found
    from launcher.preflight import assess, findings  # Late, because most runs are not resumed.

    try:
        spec = contents.spec_of(run)
        if spec.judges_no_model or findings.errors(spec):
            return found
        return {**found, "load": assess.estimated(assess.going_on(spec)).phases["load"]}
    except LauncherError:  # It is damaged, or an extension that the run needs is not installed here.
        return found


def was_restored(run: Path) -> bool:
    """True if the measured load is the load of a checkpoint."""
    return contents.known(run, contents.MEMORY).get("restored", 0) not in (0, None)


def measured(run: Path) -> dict[str, int]:
    """The largest figure over the ranks for each phase, in bytes, and for the state between two steps."""
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
    """The progress of a run; None stands for a figure that is not known, or not yet."""

    step: int | None  # The newest step with a line of metrics.
    steps: int | None  # All that it is to do; None for a script of the user's own.
    loss: float | None  # Of the newest line.
    tokens_per_second: float | None  # Of the newest line, of all ranks together.
    # Until the last step at the speed of the newest lines, without evaluations and checkpoints; before the first line
    # at the speed that the plan predicts.
    seconds_left: float | None
    left_is: Literal["measured", "predicted"] | None  # Where ``seconds_left`` is from; None where it is not known.
    checkpoint_step: int | None  # Step of the newest whole checkpoint.
    evaluation: JsonObject | None = field(default=None, hash=False)  # The newest one, as :func:`evaluation` has it.


def read_progress(run: Path) -> Progress:
    """Read where a run stands."""
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
    """The last whole lines of ``metrics.jsonl`` that name a step, oldest first."""
    return _last_rows(_tail(run, count), count)


def _tail(run: Path, count: int) -> list[str]:
    """The end of ``metrics.jsonl``, with room for so many lines."""
    return files.last_lines(run / METRICS, max(_END_BYTES, 512 * count))


def _last_rows(lines: Sequence[str], count: int) -> list[JsonObject]:
    return list(itertools.islice(rows_of(reversed(lines)), count))[::-1]


def rows_of(lines: Iterable[str]) -> Iterator[JsonObject]:
    """The lines that are whole and name a step."""
    return (row for row in files.json_objects(lines) if _step(row) is not None)


def last_step_of(run: Path) -> int | None:
    """Steps of a run; None for a script of the user's own, which decides that by itself."""
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
    """Seconds until the last step, at the mean speed of some lines; evaluations and checkpoints come on top."""
    speeds = [seconds for row in rows[-_RECENT:] if (seconds := number(row, "step_seconds")) is not None]
    if steps is None or not speeds:
        return None
    return max(0, steps - int(rows[-1]["step"])) * sum(speeds) / len(speeds)


def newest_checkpoint(run: Path) -> int | None:
    """The step of the newest whole checkpoint, from which a resumed run goes on."""
    found = checkpoints.whole_checkpoints(run)
    return found[-1].step if found else None


def metrics_line(row: Mapping[str, Any], steps: int | None) -> str:
    """A line of metrics for a person: its step, losses, gradient norm, learning rate and speed, where it has them."""
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


_OF_A_SET = "eval_loss/"  # What the keys of losses on named data sets begin with.


def eval_sets(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The keys of the losses of evaluations on named data sets, by the names."""
    return {key.removeprefix(_OF_A_SET): key for row in rows for key in row if key.startswith(_OF_A_SET)}


def evaluation(row: Mapping[str, Any]) -> JsonObject | None:
    """The evaluation of a line: loss and perplexity, of several data sets the mean's and each one's by its name."""
    found = {
        name: {key: number(row, f"eval_{key}{name and '/'}{name}") for key in ("loss", "perplexity")}
        for name in ("", *eval_sets([row]))
    }
    mean = found.pop("")
    return None if mean["loss"] is None else {"step": _step(row), **mean, "sets": found}


def last_evaluation(rows: Sequence[Mapping[str, Any]]) -> JsonObject | None:
    """The evaluation of the last of some lines that has one."""
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
    """A value of a line as a finite number; None where it has none."""
    value = row.get(key)
    return float(value) if typed.is_number(value) else None


def _step(row: Mapping[str, Any]) -> int | None:
    value = row.get("step")
    return value if typed.is_whole(value) else None


FIRST_LOSSES = 20  # Lines of ``metrics.jsonl`` that a lock keeps: enough to tell one run from another.
LOSSES = "losses:"  # The lock's key of them.


def add_losses(run: Path) -> None:
    """Put the first losses of a run into its lock; a lock that has them stays as it is."""
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
    """A row as an item of YAML, which spells NaN and infinity otherwise than JSON; a run in fp16 may begin so."""
    return f"- {json.dumps(dict(row)).replace('NaN', '.nan').replace('Infinity', '.inf')}\n"


def _row(content: Mapping[str, Any]) -> JsonObject:
    norm = content.get("grad_norm")
    return {"step": content["step"], "loss": content["loss"], "grad_norm": norm if is_number(norm) else None}


MEAN = "mean of the last tenth of the logged steps"
"""Lines of metrics whose mean counts as the loss of a run, since single lines scatter around it."""

_NO_SAMPLES = ("workers", "preview")  # Keys of ``data`` that change no sample.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The data of a run, and its losses."""

    data: str  # Its data and the length of its sequences, to be compared with others'.
    tokens: int | None  # Of a step; None where that is not known.
    held_out: float | None  # The last loss on held-out samples.
    training: float | None  # The mean over the last tenth of the logged steps.


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The loss that runs are ranked by, or None and the reason."""

    kind: Literal["held_out", "training"] | None
    why: str = ""

    def loss(self, run: Trained | None) -> float | None:
        """That loss of a run."""
        return None if run is None or self.kind is None else getattr(run, self.kind)

    @property
    def words(self) -> str:
        """The lowest loss, as a sentence begins with it."""
        return "lowest held-out loss" if self.kind == "held_out" else f"lowest loss ({MEAN})"


def trained_on(run: Path, rows: Sequence[Mapping[str, Any]]) -> Trained:
    """The data and losses of a run by its lines of metrics; a script of the user's own chooses its data by itself."""
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
    """Tokens of a global batch by a recorded specification; None of a script, and of a damaged record."""
    try:
        spec = parse(json.loads(json.dumps(content)))
    except LauncherError:
        return None
    return None if spec.script is not None else spec.global_batch_size * spec.sequence_length


def ranking_basis(runs: Iterable[Trained]) -> Basis:
    """The loss that runs are ranked by, of those that have any."""
    found = [run for run in runs if run.training is not None]
    if len({run.data for run in found}) > 1:
        return Basis(kind=None, why="their data or the lengths of their sequences differ")
    if found and all(run.held_out is not None for run in found):
        return Basis(kind="held_out")
    sizes = sorted({run.tokens for run in found if run.tokens is not None})
    if len(sizes) > 1:
        way = "train.eval_every gives them losses on the same held-out samples"
        return Basis(kind=None, why=f"a step has {sizes[0]:,} to {sizes[-1]:,} tokens; {way}")
    return Basis(kind="training")


def loss(found: Sequence[JsonObject]) -> float:
    """The loss that a sampler minimises: the last on held-out samples, else the mean over the last tenth of steps."""
    held_out = [row["eval_loss"] for row in found if is_number(row.get("eval_loss"))]
    if held_out:
        return float(held_out[-1])
    return training_loss(found) or 0.0


def training_loss(found: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean over the last tenth of the lines, at least one: single lines scatter; None where there are none."""
    last = [row["loss"] for row in found[-max(1, len(found) // 10) :]]
    return float(sum(last) / len(last)) if last else None


def closing_loss(found: Sequence[Mapping[str, Any]]) -> str:
    """The loss of training that a run has come to, as text: the mean of the last tenth of its lines."""
    count = max(1, len(found) // 10)
    return f"{training_loss(found):.4f}" + (f" (mean of the last {count} lines)" if count > 1 else "")
