"""Why a run ended as it did, with the ways out that ``launch resume`` takes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from launcher.actions.asking import folder
from launcher.base.errors import ConfigErrors, DataError, DoesNotFit, SubmitError
from launcher.base.terminal import heard_by
from launcher.why.answer import Answer
from launcher.why.explain import explain


def explained(directory: Path) -> Answer:
    """The answer about a run, whose ways out are lines that ``launch resume`` takes."""
    return explain(directory, folder(), lambda words: takes(directory, words))


def takes(directory: Path, words: Sequence[str]) -> bool:
    """True if ``launch resume`` takes these words for a run: composed and judged, and nothing submitted."""
    from launcher.actions import resume_changed  # Late, because it composes.

    refusals = (ConfigErrors, DoesNotFit, SubmitError, DataError, OSError)
    with heard_by(lambda text: None), contextlib.suppress(*refusals):
        resume_changed.planned(directory, words, trusted=True)
        return True
    return False
