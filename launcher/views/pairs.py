"""Predicted figures beside measured ones: the rows of a table, and the table at the end of a run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.base import files, typed
from launcher.base.files import JsonObject
from launcher.base.terminal import wrapped
from launcher.base.units import Pair, gib, rounded
from launcher.estimate.memory.moments import PHASES
from launcher.job import events
from launcher.rundir import contents, results
from launcher.rundir.results import BETWEEN

_FORM = "{:24} {:>12} {:>12} {:>8}"


def rows(form: str, named: Iterable[tuple[str, Pair[Any], str]], unit: Callable[[Any], str] = gib) -> Iterator[str]:
    """A row of four cells for each pair of figures: its name, both values formatted by ``unit``, and a last cell."""
    for name, pair, last in named:
        yield form.format(name.replace("_", " "), *pair.texts(unit), last)


def number_text(value: float | None, form: str) -> str:
    """A formatted number, or a dash for None."""
    return "-" if value is None else format(value, form)


def error_text(pair: Pair[Any]) -> str:
    """The relative error of a prediction, without a sign when it rounds to zero; empty when a figure is unknown."""
    error = None if not pair.predicted or pair.error is None else round(pair.error, 3)
    return "" if error is None else f"{error:+.1%}" if error else "0.0%"


def summary_table(directory: Path) -> str:
    """The table printed when a run ends: predicted and measured memory and speed, losses, and the run directory."""
    memory, steps = contents.known(directory, contents.MEMORY), results.steps(directory)
    sizes, speeds = list(_memory(directory)), list(_speed(directory, steps))
    lines = [*rows(_FORM, sizes), *rows(_FORM, speeds, rounded)]
    if lines:  # For a user's own script neither is known.
        lines.insert(0, _FORM.format("memory, worst rank" if sizes else "", "predicted", "measured", "error"))
    if sizes:
        lines += wrapped(f"memory measured: {memory.get('method', 'nothing')}", 80)
    return "\n".join(["", *lines, *_ending(directory, steps), f"run directory {directory}"])


def _memory(directory: Path) -> Iterator[tuple[str, Pair[int], str]]:
    plan, measured = contents.known(directory, contents.PLAN), results.measured(directory)
    predicted = {**results.predicted_phases(directory), BETWEEN: plan.get("static_bytes")}
    for phase in (*PHASES, BETWEEN):
        pair = Pair(predicted.get(phase), measured.get(phase))
        if pair.predicted and pair.error is not None:
            yield phase, pair, f"{pair.error:+.1%}"


def _speed(directory: Path, steps: Sequence[JsonObject]) -> Iterator[tuple[str, Pair[float], str]]:
    predicted = results.predicted_speed(directory)
    measured = results.speed(steps, predicted)
    if predicted is not None and measured:
        pair = Pair(predicted.per_gpu, measured * predicted.per_gpu / predicted.tokens_per_second)
        yield "tokens/s a GPU", pair, f"{pair.error or 0:+.1%}"


def _ending(directory: Path, steps: Sequence[JsonObject]) -> Iterator[str]:
    if steps:
        yield f"loss {steps[0]['loss']:.4f} -> {results.closing_loss(steps)} in {steps[-1]['step']} steps"
        if (evaluation := results.last_evaluation(steps)) is not None:
            yield from wrapped(f"{results.evaluation_text(evaluation)} at step {evaluation['step']}", 80)
    if (speed := results.speed(steps, results.predicted_speed(directory))) is not None:
        yield f"{speed:,.0f} tokens/s (median of the second half)"
    yield from task_lines(directory)
    for line in events.news(directory):
        if line["kind"] == "bad_rows":
            yield from wrapped(f"data: {line['text']}", 80)


def task_lines(run: Path) -> Iterator[str]:
    """Each benchmark score in words, such as ``hellaswag acc 0.2610 (+-0.0044) after step 100``."""
    content = files.read_json(run / results.EVALUATION) or {}
    tasks, step = content.get("tasks"), content.get("step")
    for task, scores in tasks.items() if isinstance(tasks, dict) else ():
        for key, value in scores.items() if isinstance(scores, dict) else ():
            metric, _, kind = key.partition(",")
            if typed.is_number(value) and "," in key and not metric.endswith("_stderr"):
                error = scores.get(f"{metric}_stderr,{kind}")
                band = f" (+-{error:.4f})" if typed.is_number(error) else ""
                yield f"{task} {metric}{'' if kind == 'none' else f' ({kind})'} {value:.4f}{band} after step {step}"
