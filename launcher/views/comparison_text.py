"""A comparison as terminal text: a sentence for each finding, then a table with a column a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from launcher.base.terminal import wrapped
from launcher.base.units import gib
from launcher.rundir.results import MEAN
from launcher.views.comparison import Comparison, Side, lowest
from launcher.views.pairs import number_text

type Line = tuple[str, Sequence[str]]
"""A name and a cell for every run."""

_LONGEST = 28  # Widest cell in characters; ``--json`` has the whole value.
_FOLLOWERS = 3  # When a group's option differs and more of its settings than this, they are counted, not listed.


def text(found: Comparison, width: int) -> str:
    """The whole comparison, in several blocks of columns when the runs do not fit the width."""
    sections: dict[str, Sequence[Line]] = {
        "": [*_facts(found)],
        **_settings(found),
        "loss at equal steps": [(f"step {step:,}", losses_text(row)) for step, row in found.at_steps.items()],
        "loss at equal tokens": [(f"{tokens:,} tokens", losses_text(row)) for tokens, row in found.at_tokens.items()],
    }
    return "\n".join([*wrapped(sentences(found), width, rest="  "), *_table(names(found), sections, width)])


def names(found: Comparison) -> list[str]:
    """The name of each run: its id, or its directory when ids are not unique."""
    ids = [side.run.id for side in found.sides]
    return [side.run.directory if ids.count(side.run.id) > 1 else side.run.id for side in found.sides]


def sentences(found: Comparison) -> Iterator[str]:
    """The findings: lowest loss, fastest run, and what cannot be compared."""
    yield from _ranked(found)
    fastest = lowest(found, lambda side: None if side.speed.measured is None else -side.speed.measured)
    if fastest is not None and len({side.speed.measured for side in found.sides} - {None}) > 1:
        yield f"fastest: {fastest.run.id}, {number_text(fastest.speed.measured, ',.0f')} tokens/s a GPU"
    for side in found.sides:
        if not side.curve:
            reason = f": {side.run.reason}" if side.run.reason else ""
            yield f"{side.run.id} has no loss in its metrics; it is {side.run.state}{reason}"
        elif side.run.state != "finished":
            yield f"{side.run.id} is {side.run.state}: its figures so far"
        if side.curve and side.tokens_per_step is None:
            yield f"{side.run.id}: tokens per step are unknown for a script"


def _ranked(found: Comparison) -> Iterator[str]:
    if found.by.kind is None:
        yield f"not ranked by loss: {found.by.why}"
    elif found.by.kind == "held_out":
        yield from _first(found, {side: side.trained.held_out for side in found.sides}, "last held-out loss")
    elif found.at_steps:
        at, losses = list(found.at_steps.items())[-1]
        where = f"at step {at:,}, the last step of all"
        yield from _first(found, dict(zip(found.sides, losses, strict=True)), where)


def _first(found: Comparison, losses: Mapping[Side, float | None], where: str) -> Iterator[str]:
    best = lowest(found, losses.get)
    if best is not None:
        others = (f"{side.run.id} {loss:.4f}" for side, loss in losses.items() if loss is not None and side is not best)
        yield f"lowest loss {where}: {best.run.id}, {losses[best]:.4f} ({', '.join(others)})"


def _facts(found: Comparison) -> Iterator[Line]:
    loss = "loss, last on held-out samples" if found.held_out else f"loss, {MEAN}"
    columns: dict[str, Callable[[Side], str]] = {
        "state": lambda side: side.run.state,
        "steps": _steps,
        "tokens": lambda side: number_text(side.tokens, ","),
        loss: lambda side: number_text(found.loss(side), ".4f"),
        "tokens/s a GPU predicted": lambda side: number_text(side.speed.predicted, ",.0f"),
        "tokens/s a GPU measured": lambda side: number_text(side.speed.measured, ",.0f"),
        "GPUs": lambda side: str(side.gpus),
        "memory predicted": lambda side: side.memory.texts(gib)[0],
        "memory measured": lambda side: side.memory.texts(gib)[1],
    }
    if all(side.speed.predicted is None for side in found.sides):
        del columns["tokens/s a GPU predicted"]
    for name, cell in columns.items():
        yield name, [cell(side) for side in found.sides]


def _settings(found: Comparison) -> dict[str, list[Line]]:
    paths, hidden = telling(found)
    lines: list[Line] = [(path, [_value(value) for value in found.differences[path]]) for path in paths]
    also = f" (and {', '.join(hidden)}: --json)" if hidden else ""
    return {f"settings that differ{also}": lines} if lines else {"the settings are the same": []}


def telling(found: Comparison) -> tuple[list[str], list[str]]:
    """The settings that differ, and a note on those left out because they follow from another option of their group."""
    groups: dict[str, list[str]] = {}
    for path in found.differences:
        groups.setdefault(path.partition(".")[0], []).append(path)
    shown: list[str] = []
    hidden: list[str] = []
    for group, paths in groups.items():
        follow = f"{group}.name" in paths and len(paths) - 1 > _FOLLOWERS
        shown += [f"{group}.name"] if follow else paths
        hidden += [f"{len(paths) - 1} more of {group}"] if follow else []
    return shown, hidden


def _table(names: Sequence[str], sections: Mapping[str, Sequence[Line]], width: int) -> Iterator[str]:
    lines = [line for section in sections.values() for line in section]
    first = max(len(name) for name, _ in lines)
    widths = [max(len(cell) for cell in (name, *(cells[n] for _, cells in lines))) for n, name in enumerate(names)]
    for block in _blocks(widths, width - first):
        yield ""
        yield _row("", [names[n] for n in block], first, [widths[n] for n in block])
        for title, section in sections.items():
            if title and (section or title.startswith("the settings")):
                yield f"\n{title}"
            for name, cells in section:
                yield _row(name, [cells[n] for n in block], first, [widths[n] for n in block])


def _blocks(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    block: list[int] = []
    for number, width in enumerate(widths):
        if block and sum(widths[n] + 2 for n in block) + width + 2 > room:
            yield block
            block = []
        block.append(number)
    yield block


def _row(name: str, cells: Sequence[str], first: int, widths: Sequence[int]) -> str:
    return "  ".join([name.ljust(first), *(cell.rjust(size) for cell, size in zip(cells, widths, strict=True))])


def _steps(side: Side) -> str:
    now = side.run.progress
    done = "-" if now.step is None else f"{now.step:,}"
    return done if now.steps is None else f"{done}/{now.steps:,}"


def losses_text(row: Sequence[float | None]) -> list[str]:
    """Losses of several runs, a dash for a missing one."""
    return [number_text(loss, ".4f") for loss in row]


def _value(value: Any) -> str:
    plain = "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 3]}..."
