"""A sample of a run's data before it starts, cached for files that were sampled before."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from launcher.base import cache
from launcher.base.package import __version__
from launcher.data.files import files_of, other_splits, stamps
from launcher.data.survey import Survey, together
from launcher.data.unusable import Unusable
from launcher.spec import DataSpec
from launcher.spec.training import PART_KEYS, ROWS

_EMPTY = ("missing", "samples", "other_splits", "parts", "bad")  # Fields that are empty in a cached survey.
_KEPT = tuple(name for name in Survey.__slots__ if name not in _EMPTY)
_values = attrgetter(*_KEPT)


def look(data: DataSpec, task: str = "") -> Survey | None:
    """Survey data as ``task`` would read its rows; None for synthetic data, or a Hub data set that is not cached.

    All data sets of a mix are surveyed; those for evaluations are only checked for faults.
    """
    if data.source == "synthetic":
        return None
    for place, each in enumerate(data.evaluated.values()):
        prefix = f"data.eval_sets.{place}." if data.eval_sets else "data.eval_"
        survey = _named(each, prefix, PART_KEYS if data.eval_sets else ("path", "split", "config"), task)
        held = () if survey is None else survey.columns
        if held and (missing := [name for name in ROWS.get(task, ()) if name not in held]):
            rule = f"task={task} evaluates on rows with {', '.join(missing)}; these have {', '.join(held)}"
            raise Unusable(f"{prefix}path", each.path, rule)
    if not data.mix:
        return _look(data.trained[0], task)
    found = [_named(each, f"data.mix.{place}.", PART_KEYS, task) for place, each in enumerate(data.trained)]
    return None if None in found else together(tuple(each for each in found if each is not None))


def _named(data: DataSpec, prefix: str, keys: Sequence[str], task: str) -> Survey | None:
    try:
        return _look(data, task)
    except Unusable as error:
        finding, name = error.finding, error.finding.path.removeprefix("data.")
        own = name in keys
        rule = finding.rule if own else f"of {prefix}path={data.path}: {finding.rule}"
        ways = () if own else finding.way_out
        raise type(error)(prefix + name if own else finding.path, finding.found, rule, ways) from None


def _look(data: DataSpec, task: str) -> Survey | None:
    if data.path is None:
        return None
    files = files_of(data)
    return replace(_survey(files, data, task), other_splits=tuple(other_splits(data).items())) if files else None


def _survey(files: Sequence[Path], data: DataSpec, task: str) -> Survey:
    """The survey of files, cached by their paths, sizes and times if it depends on nothing else."""

    def found() -> Survey:
        from launcher.data.surveying import survey  # Late, because files that were surveyed before need no reader.

        return survey(files, data, task)

    if data.source in ("chat", "rows") or data.tokenizer != "bytes" or data.on_bad_row != "error":
        return found()
    settings = (data.source, data.column, data.split, data.token_dtype, data.max_samples)
    question = [__version__, *settings, stamps(files)]
    kept = cache.answer("surveys", question, lambda: dict(zip(_KEPT, _values(found()), strict=True)))
    return Survey(**kept | {"columns": tuple(kept["columns"])})


class SurveyCache:
    """Surveys each data set once, for many runs that are checked together."""

    def __init__(self) -> None:
        self._known: dict[tuple[DataSpec, str], Survey | Unusable | None] = {}

    def __call__(self, data: DataSpec, task: str = "") -> Survey | None:
        """The survey, as from :func:`look`."""
        asked = data, task
        if asked not in self._known:
            try:
                self._known[asked] = look(data, task)
            except Unusable as error:
                self._known[asked] = error
        found = self._known[asked]
        if isinstance(found, Unusable):
            raise found
        return found

    def forget(self) -> None:
        """Forget all surveys, so that everything is surveyed again."""
        self._known.clear()
