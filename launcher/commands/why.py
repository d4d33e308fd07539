"""Explain why runs ended: a pile of memory that grew, a rank, a hang, a limit; with evidence, and what would help.

For a sweep it prints one line per failed run; SWEEP/POINT gives one point's whole answer. The exit status is 0 whenever
there was an answer, even if nothing went wrong.
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from launcher.actions.diagnosis import explain_end
from launcher.actions.requests import folder
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import width
from launcher.commands._options import add_shared, named_runs, print_answer
from launcher.rundir import status
from launcher.views.why import as_line, as_text
from launcher.why.answer import Answer
from launcher.why.explain import explain

_BAD = ("failed", "lost", "requeued", "not_visible", "unreadable")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_shared(parser, "runs", "--json")


def run(options: argparse.Namespace) -> int:
    """Print the answer about a run, or one line for each failed run of a sweep."""
    if len(options.runs) != 1:
        rule = "name one run, or a sweep to list its failed runs: launch why RUN"
        raise ConfigErrors([ConfigError("RUN", " ".join(options.runs) or None, rule, ["launch status"])])
    found = named_runs(options)
    if found.sweep is not None:
        bad = [row for row in status.read_all(found.runs) if row.state in _BAD]
        answers = [explain(Path(row.directory), folder(), lambda words: False) for row in bad]
        none = f"no run of {found.sweep.name} has failed ({len(found.runs)} runs)"
        document = {"schema": 1, "why": [answer.as_dict() for answer in answers]}
        print_answer(options, lambda: document, lambda: _of_several(answers) or none)
        return 0
    answer = explain_end(found.runs[0])
    print_answer(options, lambda: {"schema": 1, "why": answer.as_dict()}, lambda: as_text(answer, width()))
    return 0


def _of_several(answers: Sequence[Answer]) -> str:
    further = [f"details of one of them: launch why {shlex.quote(answer.id)}" for answer in answers[:1]]
    return "\n".join([*map(as_line, answers), *further])
