"""Why runs ended as they did: which pile of memory grew, a rank, a hang, a limit; evidence, and what would help.

Of a sweep the runs that failed, a line each; SWEEP/POINT has one point's whole answer. Status 0 whenever there was an
answer, also where nothing went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from launcher.base.errors import ConfigError, ConfigErrors, DataError, DoesNotFit, SubmitError
from launcher.commands._common import add_json, add_runs, folder, heard_by, print_json, width
from launcher.commands._finding import find, settle, sweep_of
from launcher.rundir import status
from launcher.why.answer import Answer
from launcher.why.explain import explain
from launcher.why.text import as_line, as_text

_BAD = ("failed", "lost", "requeued", "not_visible", "unreadable")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the answer about a run, or a line for each run of a sweep that failed."""
    if len(options.runs) != 1:
        rule = "one run is explained at a time; a sweep's failed runs have a line each"
        raise ConfigErrors([ConfigError("RUN", " ".join(options.runs) or None, rule, ["launch status"])])
    settle(options)
    swept = sweep_of(options.runs[0])
    if swept is not None:
        _of_sweep(swept, find(options.runs), as_json=options.json)
        return 0
    [directory] = find(options.runs)[:1]
    found = explained(directory)
    if options.json:
        print_json({"schema": 1, "why": found.as_dict()})
    else:
        print(as_text(found, width()))
    return 0


def explained(directory: Path) -> Answer:
    """The answer about a run, whose ways out are lines that ``launch resume`` takes."""
    return explain(directory, folder(), lambda words: takes(directory, words))


def takes(directory: Path, words: Sequence[str]) -> bool:
    """True if ``launch resume`` takes these words for a run: composed and judged, and nothing submitted."""
    from launcher.commands import _changing  # Late, because it composes.

    refusals = (ConfigErrors, DoesNotFit, SubmitError, DataError, OSError)
    with heard_by(lambda text: None), contextlib.suppress(*refusals):
        _changing.planned(directory, words, trusted=True)
        return True
    return False


def _of_sweep(swept: Path, directories: Sequence[Path], *, as_json: bool) -> None:
    bad = [row for row in status.read_all(directories) if row.state in _BAD]
    answers = [explain(Path(row.directory), folder(), lambda words: False) for row in bad]
    if as_json:
        print_json({"schema": 1, "why": [answer.as_dict() for answer in answers]})
        return
    if not answers:
        print(f"no run of {swept.name} has failed ({len(directories)} runs)")
    for answer in answers:
        print(as_line(answer))
    if answers:
        print(f"all about one of them: launch why {shlex.quote(answers[0].id)}")
