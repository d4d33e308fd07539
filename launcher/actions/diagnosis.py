"""The end of a run as data: its errors, its last printed lines, and the reason for its end."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from launcher.actions.requests import folder
from launcher.base.errors import ConfigError, ConfigErrors, DataError, DoesNotFit, SubmitError
from launcher.base.files import JsonObject
from launcher.base.terminal import heard_by
from launcher.rundir import output, results, state
from launcher.rundir.output import Outputs
from launcher.rundir.status import RunState
from launcher.why.answer import Answer
from launcher.why.explain import explain

BAD: tuple[state.State, ...] = ("failed", "lost", "not_visible", "requeued")


def errors_of(row: RunState, rank: int | None) -> list[JsonObject]:
    """The ranks' errors, the cause of the failure first; none if the run has not failed."""
    errors = output.written_errors(Path(row.directory)) if row.state in BAD else []
    return [error for error in errors if error["traceback"] and rank in (None, int(error["rank"]))]


def outputs_of(directory: Path, rank: int | None) -> Outputs:
    """The output files of a run, or of one of its ranks; raises ConfigErrors if there is no such rank."""
    found = output.outputs(directory) if rank is None else output.of_rank(directory, rank)
    if found is None:
        raise ConfigErrors([ConfigError("--rank", rank, f"{directory.name} has no logs of this rank (yet)")])
    return found


def document(row: RunState, *, lines: int, rank: int | None) -> JsonObject:
    """A run's state, error, latest steps and last lines of its files: its part of ``launch logs --json``."""
    directory = Path(row.directory)
    found = outputs_of(directory, rank)
    return {
        "id": row.id,
        "directory": row.directory,
        "state": row.state,
        "reason": row.reason,
        "error": next(iter(errors_of(row, rank)), None),
        "steps": results.newest(directory, lines),
        "files": [{"path": str(path), "lines": output.tail(path, lines)} for path in found.every],
    }


def explain_end(directory: Path) -> Answer:
    """Why a run ended, with ways out as words that ``launch resume`` accepts."""
    return explain(directory, folder(), lambda words: takes(directory, words))


def takes(directory: Path, words: Sequence[str]) -> bool:
    """True if ``launch resume`` accepts these words for a run; composes and checks, submits nothing."""
    from launcher.actions import resume_changed  # Late, because it composes.

    refusals = (ConfigErrors, DoesNotFit, SubmitError, DataError, OSError)
    with heard_by(lambda text: None), contextlib.suppress(*refusals):
        resume_changed.plan_changed(directory, words, trusted=True)
        return True
    return False
