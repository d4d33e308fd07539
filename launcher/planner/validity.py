"""Words with which no layout is valid: an error of the words, and no answer that nothing fits."""

from __future__ import annotations

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.planner.question import Question
from launcher.planner.result import Plan
from launcher.preflight import findings


def require_valid(question: Question, found: Plan) -> None:
    """Refuse words that are wrong with every layout.

    Where none is valid the errors are those that the words have with all engines, as they are typed; where these have
    none in common, those with each.

    Args:
        question: The question.
        found: Its answer.

    Raises:
        ConfigErrors: They are wrong.
    """
    errors: tuple[ConfigError, ...] = ()
    if found.layouts:
        errors = findings.errors(found.layouts[0].spec)  # Of names, places and secrets no layout is asked.
    elif found.finished and found.counts.considered == found.counts.invalid:
        errors = _as_typed(question)
    if errors:
        raise ConfigErrors(errors)


def _as_typed(question: Question) -> tuple[ConfigError, ...]:
    by_engine = [{error.path: error for error in findings.errors(each.spec)} for each in question.openings]
    every = {path: error for errors in by_engine for path, error in errors.items()}
    shared = every.keys() & set.intersection(*(set(errors) for errors in by_engine))
    return tuple(error for path, error in every.items() if path in shared or not shared)
