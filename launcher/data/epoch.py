"""The number of samples that one pass over a run's data has, before the run where the data are here."""

from __future__ import annotations

from collections.abc import Callable

from launcher.base.errors import DataError
from launcher.data import look
from launcher.data.packing import bins, packed
from launcher.data.survey import Survey
from launcher.data.token_folder import TokenFolder
from launcher.spec import DataSpec, RunSpec, edit

type DataLook = Callable[[DataSpec], Survey | None]


def samples_of(spec: RunSpec, survey: Survey) -> int | None:
    """Samples of all data: conversations, or pieces of a long row of tokens; None where the tokens are unknown."""
    if spec.data.source == "rows":
        return survey.rows
    if survey.tokens is None:
        return None
    length, how = spec.sequence_length, spec.data.packed
    if how == "concat":
        return max(0, survey.tokens - 1) // length
    if survey.samples is None:  # Of texts the lengths are not known, only what they are together.
        return survey.rows if how == "none" else -(-survey.tokens // (length + 1))
    tried = len(survey.samples) + survey.empty
    if not tried:
        return 0
    kept = [min(tokens, length + 1) for tokens, _ in survey.samples]
    number = len(kept) if how == "none" else len(bins([size for size in kept if size > 1], length + 1))
    return round((survey.rows or 0) * number / tried)


def held_out(spec: RunSpec, samples: int) -> int:
    """Samples at the end that are kept for evaluation, as ``launcher.worker.data.corpus.split`` keeps them."""
    return max(1, round(samples * spec.data.eval_fraction)) if spec.evaluates else 0


def is_counted(spec: RunSpec) -> bool:
    """True if a number of the run follows from the samples of an epoch."""
    return any(each is not None for each in (spec.train.epochs, spec.train.evals_per_epoch, spec.save.per_epoch))


def with_samples(spec: RunSpec, looking: DataLook = look.look) -> RunSpec:
    """A run with ``data.samples`` from a look at its data, where it asks for epochs and does not say them itself."""
    if not is_counted(spec) or spec.data.samples is not None or spec.script is not None:
        return spec
    try:
        survey = looking(spec.data)
    except DataError:  # Which the look at the data of a check says.
        return spec
    found = None if survey is None else samples_of(spec, survey)
    trained = 0 if found is None else found - held_out(spec, found)
    return edit.changed(spec, "data.samples", trained) if trained > 0 else spec


def is_exact(spec: RunSpec, survey: Survey) -> bool:
    """True if a look at the data has counted every sample: then the job counts as many."""
    if spec.data.source == "rows":
        return survey.rows is not None and survey.rows_exact
    if survey.tokens is None or survey.tokens_error:
        return False
    return spec.data.packed == "concat" or (survey.samples is not None and survey.whole)


def steps_of(spec: RunSpec, found: TokenFolder) -> int | None:
    """The steps of a run whose token ids are made; None where they do not follow from the data."""
    if not is_counted(spec):
        return None
    samples = _samples_in(found, spec)
    return counted(spec, max(1, samples - held_out(spec, samples))).steps


def _samples_in(found: TokenFolder, spec: RunSpec) -> int:
    if spec.data.packed == "none":
        return found.documents
    if spec.data.packed == "concat":
        return max(0, found.tokens - 1) // spec.sequence_length
    return len(packed(found.ends(), spec.sequence_length, split=not found.marked).ends)


def counted(spec: RunSpec, samples: int) -> RunSpec:
    """The run with the samples of an epoch as they were counted when its data were opened."""
    return edit.changed(spec, "data.samples", samples) if is_counted(spec) else spec
