"""``launch plan --results ID``: the layouts of a measurement by what was measured, and the winner as a recipe."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import Any

from launcher.actions import recipes as keeping
from launcher.actions.asking import folder
from launcher.actions.find_runs import settled, sweep_of
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError
from launcher.base.terminal import width
from launcher.base.units import compared, gib, rounded
from launcher.config import recipes
from launcher.config.catalog import Catalog
from launcher.rundir import status
from launcher.sweeping import evidence, measurement
from launcher.sweeping.measurement import Measured, Results

_HEADINGS = ("#", "layout", "state", "tokens/s a GPU", "predicted", "memory", "predicted")
_FORM = "{:>2}  {:6}  {:9}  {:>14}  {:>9}  {:>10}  {:>10}"


def answered(run: str, *, save: str | None, ask: bool) -> Results:
    """Read the results of a measurement so far.

    Args:
        run: The measurement, by its name or folder.
        save: The name of the recipe that is to be written; None leaves it open.
        ask: True to let a person at a terminal choose between several of the name.

    Raises:
        ConfigErrors: It is no measurement, or nothing was measured that could be saved.
    """
    found = measurement.read(_directory(run, ask=ask))
    if save is not None:
        keeping.require_name("--save", save, "--save mine")
        if not found.measured:
            rule = "no run has finished, so there is no fastest layout yet"
            raise ConfigErrors([ConfigError("--save", save, rule, [f"launch status {name_of(found.directory)}"])])
    return found


def _directory(run: str, *, ask: bool) -> Path:
    directory = sweep_of(settled([run], ask=ask)[0])
    if directory is None:
        rule = "a run, and no measurement of layouts"
        raise ConfigErrors([ConfigError("--results", run, rule, [f"launch status {run}"])])
    return directory


def name_of(directory: Path) -> str:
    """The word that names a measurement in a command."""
    return shlex.quote(status.name_of(directory, folder()))


def text(found: Results) -> str:
    """The layouts for a terminal, those with a result first; below each its words, and why it has none."""
    lines = [_FORM.format(*_HEADINGS)]
    for place, row in places(found):
        figures = [_number(row.tokens_per_second_per_gpu), _number(row.predicted_per_gpu)]
        figures += ["-" if size is None else gib(size) for size in (row.measured_bytes, row.predicted_bytes)]
        lines.append(_FORM.format(place or "-", row.row.point.id, row.state, *figures))
        lines += _below(" ".join(row.row.point.overrides))
        lines += _below(_beside(row))
    return "\n".join((*lines, *_closing(found)))


def _number(value: float | None) -> str:
    return "-" if value is None else rounded(value)


def _below(words: str) -> list[str]:
    return textwrap.wrap(
        words,
        width(),
        initial_indent=" " * 6,
        subsequent_indent=" " * 6,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _beside(row: Measured) -> str:
    """Measured against predicted in words; of a run without a result, the reason."""
    measured, predicted = row.tokens_per_second_per_gpu, row.predicted_per_gpu
    if measured is None:
        return row.reason or ""
    parts = []
    if predicted is not None:
        words = compared(measured / predicted)
        parts.append(f"{words} {'as' if 'as fast' in words else 'than'} predicted")
    if row.measured_bytes is not None and row.predicted_bytes:
        more = round(100 * (row.measured_bytes / row.predicted_bytes - 1))
        parts.append(
            f"{abs(more)}% {'more' if more > 0 else 'less'} memory than predicted" if more else "memory as predicted"
        )
    return ", ".join(parts)


def _closing(found: Results) -> list[str]:
    if found.waits:
        return [f"\n{found.waits} of {len(found.rows)} runs have not ended"]
    return [] if found.measured else ["\nno layout was measured"]


def places(found: Results) -> list[tuple[int | None, Measured]]:
    """The rows with their ranks; None for those without a result."""
    count = len(found.measured)
    return [(number if number <= count else None, row) for number, row in enumerate(found.rows, 1)]


def document(found: Results, recipe: Path | None) -> dict[str, Any]:
    """The document of ``launch plan --results --json``."""
    content = {
        "id": found.directory.name,
        "directory": str(found.directory),
        **{key: found.content.get(key) for key in ("question", "training", "steps", "machine", "versions")},
        "open": found.waits,
        "points": [row.as_dict(place) for place, row in places(found)],
        "recipe": None if recipe is None else {"path": str(recipe), "use": f"launch recipe={recipe.stem}"},
    }
    return {"schema": 1, "measurement": content}


def written(found: Results, save: str | None, *, trusted: bool) -> Path | None:
    """The recipe of the fastest layout: by ``--save`` of those so far, else once all runs have ended.

    One that was written before from the same results stays.

    Raises:
        SubmitError: There is another recipe of this name.
    """
    if not found.measured or (save is None and found.waits):
        return None
    best = found.measured[0]
    name, source = save or found.directory.name, evidence.source(found, best)
    keeping.require_name("--save", name, "--save mine")
    path = keeping.place(name)
    if path.is_file() and _source_of(path) == source:
        return path
    run = best.directory or found.directory
    catalog = Catalog(folder=keeping.typed_in(run))
    summary = evidence.summary(found, best)
    try:
        return keeping.keep(name, found.words(best), catalog, summary=summary, source=source, run=run, trusted=trusted)
    except SubmitError as error:
        raise SubmitError(f"{error}, as --save NAME") from None


def _source_of(path: Path) -> str | None:
    try:
        return recipes.load(path).source
    except ConfigErrors:
        return None
