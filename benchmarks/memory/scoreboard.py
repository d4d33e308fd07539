"""The scoreboard: ``benchmarks/results/memory.md``, and its first table between two marks in the README."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import estimators
from benchmarks.memory.row import Counter
from benchmarks.memory.scoring import Judged, Rows, Score, lines, predicted
from benchmarks.reporting import RESULTS
from launcher.rundir.provenance import versions

ROOT = Path(__file__).parents[2]
DOCUMENT, README = RESULTS / "memory.md", ROOT / "README.md"
BEGIN, END = "<!-- scoreboard -->", "<!-- end of scoreboard -->"

_PEAKS: tuple[Counter, ...] = ("allocated", "reserved", "device")
_COMMAND = "python -m benchmarks.memory --data DIR --publish"

type _Errors = Sequence[float]


def publish(files: Sequence[Rows]) -> None:
    """Write both documents."""
    table = "\n".join(_short(files))
    DOCUMENT.write_text("\n".join(_document(files, table)) + "\n")
    README.write_text(replaced(README.read_text(), table))


def marked(text: str) -> str:
    """The text between the marks."""
    return text.partition(BEGIN)[2].partition(END)[0].strip("\n")


def replaced(text: str, table: str) -> str:
    """The text with another table between its marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{README} lacks the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _short(files: Sequence[Rows]) -> Iterator[str]:
    """A line a file, this model and the others on the same rows: median error of the peak, and rows covered."""
    names, own = estimators.names(), _published(files)
    titles = [*map(_title, names), *(f"{name}, its own" for name in own)]
    yield f"| peaks of measured runs, median error | rows | `launch` | 90 % within | {' | '.join(titles)} |"
    yield f"|{'---|' * (4 + len(titles))}"
    for rows in files:
        ours = _ours(rows.items)
        if ours:
            cells = [rows.file, str(len(ours)), _middle(ours), _percent(_at(ours, 0.9))]
            cells += (_covered(_theirs(rows.items, name), len(ours)) for name in names)
            cells += (_covered(_errors(_published_peaks(rows.items, name)), len(ours)) for name in own)
            yield f"| {' | '.join(cells)} |"


def _published(files: Sequence[Rows]) -> Sequence[str]:
    """Estimators that have published what they predict of some of these runs."""
    return sorted({name for rows in files for item in rows.items for name in item.row.theirs})


def _published_peaks(items: Sequence[Judged], name: str) -> Iterator[tuple[float, int]]:
    """Pairs of published estimate and measured bytes, by the first counter of each row."""
    for item, counter in _peaks(items):
        if counter in (said := item.row.theirs.get(name, {})):
            yield said[counter], item.row.measured[counter]


def _errors(pairs: Iterable[tuple[float, int]]) -> _Errors:
    return sorted(abs(answer / measured - 1) for answer, measured in pairs)


def _beside(files: Sequence[Rows], name: str) -> Iterator[str]:
    """Errors of both estimators on the rows and counters that the other one has published."""
    yield f"| file, counter | rows | `launch`, median | worst | {name}, median | worst |"
    yield f"|{'---|' * 6}"
    for rows in files:
        for counter in _PEAKS:
            items = [item for item in rows.items if counter in item.row.theirs.get(name, {})]
            if items:
                ours = _errors((predicted(item, counter), item.row.measured[counter]) for item in items)
                theirs = _errors((item.row.theirs[name][counter], item.row.measured[counter]) for item in items)
                cells = (_middle(ours), _percent(ours[-1]), _middle(theirs), _percent(theirs[-1]))
                yield f"| {rows.file}, {counter} | {len(items)} | {' | '.join(cells)} |"


def _document(files: Sequence[Rows], table: str) -> Iterator[str]:
    git = versions()["git"]
    yield "# Scoreboard: predicted against measured memory"
    yield ""
    commit = git["commit"][:12] if git else "unknown"
    yield f"Written by `{_COMMAND}` on {time.strftime('%Y-%m-%d')} at commit {commit}."
    yield "Errors are |predicted / measured - 1|. The other estimators predict the same rows; brackets give the share"
    yield "of the rows that one covers, if not all. Starred estimators are re-implemented from their published form,"
    yield "the others are called as installed."
    yield ""
    yield from (BEGIN, table, END)
    yield ""
    yield "## Every counter"
    yield ""
    heads = (
        "file, counter, rows, median, 90th percentile, worst under, worst over, OOM called fitting, fitting called OOM"
    )
    yield f"| {heads.replace(', ', ' | ')} |"
    yield f"|{'---|' * 9}"
    scores = [score for rows in files for score in lines(rows)]
    yield from (_line(score) for score in scores)
    yield ""
    for name in _published(files):
        yield f"## {name} on its own runs"
        yield ""
        yield "Its own published predictions, of each run's fullest rank; bytes that repeat are scored once."
        yield "Their adapter infers the settings that the runs do not state from these rows."
        yield ""
        yield from _beside(files, name)
        yield ""
    yield "## Rows left out"
    yield ""
    yield from _left_out({rows.file: rows.left_out for rows in files})
    yield ""
    yield "## The other estimators"
    yield ""
    for name in estimators.names():
        yield f"- {_title(name)}: {estimators.load(name).SOURCE}"


def _line(score: Score) -> str:
    shares = (score.median, score.p90, score.worst_under, score.worst_over)
    outs = (score.oom_called_fitting, score.fitting_called_oom)
    return f"| {score.file} | {score.counter} | {score.rows} | {' | '.join(map(_percent, (*shares, *outs)))} |"


def _left_out(reasons: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    yield "| file | rows | reason |"
    yield "|---|---|---|"
    for file, tally in reasons.items():
        yield from (f"| {file} | {number} | {reason} |" for reason, number in sorted(tally.items()))


def _ours(items: Sequence[Judged]) -> _Errors:
    """Errors of the peaks, each row by the first of its counters."""
    return sorted(abs(predicted(item, name) / item.row.measured[name] - 1) for item, name in _peaks(items))


def _theirs(items: Sequence[Judged], name: str) -> _Errors:
    predict = estimators.load(name).predict
    answers = ((predict(item.row.spec), item.row.measured[counter]) for item, counter in _peaks(items))
    return sorted(abs(answer / measured - 1) for answer, measured in answers if answer is not None)


def _peaks(items: Sequence[Judged]) -> Iterator[tuple[Judged, Counter]]:
    for item in items:
        if counter := next((name for name in _PEAKS if name in item.row.measured), None):
            yield item, counter


def _title(name: str) -> str:
    """The estimator's name; starred where it is re-implemented."""
    return name.replace("_", "-") + ("*" if estimators.load(name).SOURCE.startswith("re-implemented") else "")


def _covered(errors: _Errors, of: int) -> str:
    return "-" if not errors else _middle(errors) + ("" if len(errors) == of else f" ({len(errors) / of:.0%})")


def _middle(errors: _Errors) -> str:
    return _percent(statistics.median(errors))


def _at(errors: _Errors, share: float) -> float:
    return errors[min(len(errors) - 1, int(share * len(errors)))]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"
