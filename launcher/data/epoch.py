"""The number of samples in one epoch of a run's data, counted before the run if the data is on this machine."""

from collections.abc import Callable, Sequence

from launcher.base.errors import DataError
from launcher.data import look
from launcher.data.packing import bins, packed
from launcher.data.survey import Survey
from launcher.data.token_folder import Span, TokenFolder
from launcher.spec import DataSpec, RunSpec, edit

type DataLook = Callable[[DataSpec, str], Survey | None]


def samples_drawn(sizes: Sequence[int], weights: Sequence[float]) -> list[int]:
    """The samples of each data set in one epoch.

    Without weights each data set contributes its own samples. With weights the numbers are proportional to the weights,
    and the smallest for which every sample occurs at least once: sets that are small for their weight are repeated.
    A set of weight 0 has none.
    """
    if not weights:
        return list(sizes)
    weighted = list(zip(sizes, weights, strict=True))
    most = max(size / weight for size, weight in weighted if weight)
    return [max(size, round(weight * most)) if weight else 0 for size, weight in weighted]


def sizes_of(spec: RunSpec, survey: Survey) -> list[int] | None:
    """Samples of each data set: conversations, or pieces of the token sequence; None if tokens are unknown."""
    found = [_samples_of(spec, each) for each in survey.parts or (survey,)]
    return None if None in found else [size for size in found if size is not None]


def _samples_of(spec: RunSpec, survey: Survey) -> int | None:
    if spec.data.source == "rows":
        left_out = 0 if spec.task.name == "grpo" else untrained(spec, survey)
        return survey.rows and round(survey.rows * (1 - left_out / len(survey.samples or ((),))))
    if survey.tokens is None:
        return None
    length, how = spec.sequence_length, spec.data.packed
    if how == "concat":
        return max(0, survey.tokens - 1) // length
    if survey.samples is None:  # Only the total length of texts is known, not each one's.
        return survey.rows if how == "none" else -(-survey.tokens // (length + 1))
    tried = len(survey.samples) + survey.empty
    if not tried:
        return 0
    kept = [min(tokens, length + 1) for tokens, _ in survey.samples]
    number = len(kept) if how == "none" else len(bins([size for size in kept if size > 1], length + 1))
    return round((survey.rows or 0) * number / tried)


def untrained(spec: RunSpec, survey: Survey) -> int:
    """Samples truncated before their first trained token, or prompts that leave too little room for an answer.

    For rows of a task the trainers of TRL 1.16 skip these.
    """
    if spec.data.packed == "concat":
        return 0
    return sum(end is None or end > spec.sequence_length for end in tokens_needed(spec, survey))


def tokens_needed(spec: RunSpec, survey: Survey) -> list[int | None]:
    """Tokens that each sample needs: to its first label (None: no label), of a whole pair, or with an answer (GRPO)."""
    samples = survey.samples or ()
    if spec.task.name in ("grpo", "reward"):
        return [length + (spec.task.completion_length if spec.task.name == "grpo" else 0) for length, _ in samples]
    beyond = int(spec.data.source == "rows")  # Token samples have one more, since the last is only a label.
    return [None if label is None else label + beyond for _, label in samples]


def held_out(spec: RunSpec, samples: int) -> int:
    """Samples at the end of a data set that the workers hold out for evaluation."""
    if not spec.evaluates or spec.data.evaluated:
        return 0
    return max(1, round(samples * spec.data.eval_fraction))


def trained(spec: RunSpec, sizes: Sequence[int]) -> int:
    """Samples of one epoch, given the samples of each data set."""
    return sum(samples_drawn([max(0, size - held_out(spec, size)) for size in sizes], spec.data.weights))


def with_samples(spec: RunSpec, looking: DataLook = look.look) -> RunSpec:
    """The run with ``data.samples`` from a survey of its data, if it uses epochs and does not set it."""
    data, unread = spec.data, spec.data.source == "rows" and not spec.task.rows  # A rule refuses such rows.
    if not spec.counts_epochs or data.samples is not None or spec.script is not None or unread:
        return spec
    try:
        survey = looking(data, spec.task.name)
    except DataError:  # The data check reports it.
        return spec
    sizes = None if survey is None else sizes_of(spec, survey)
    samples = trained(spec, sizes) if sizes else 0
    return edit.changed(spec, "data.samples", samples) if samples else spec


def is_exact(spec: RunSpec, survey: Survey) -> bool:
    """True if a survey has counted every sample, so that the job counts the same number."""
    if survey.parts:
        return all(is_exact(spec, each) for each in survey.parts)
    if spec.data.source == "rows":
        return survey.rows is not None and survey.rows_exact
    if spec.data.packed == "none" and survey.samples is None:
        return survey.rows_exact and survey.whole and not survey.empty
    if survey.tokens is None or survey.tokens_error:
        return False
    return spec.data.packed == "concat" or (survey.samples is not None and survey.whole)


def steps_of(spec: RunSpec, found: TokenFolder) -> int | None:
    """The steps of a run whose token ids exist; None if they do not depend on the data."""
    if not spec.counts_epochs:
        return None
    spans = found.spans[: len(spec.data.trained)]
    return counted(spec, max(1, trained(spec, [_samples_in(found, span, spec) for span in spans]))).steps


def _samples_in(found: TokenFolder, span: Span, spec: RunSpec) -> int:
    if spec.data.packed == "none":
        return int(span.documents.stop - span.documents.start)
    if spec.data.packed == "concat":
        return int(max(0, span.tokens.stop - span.tokens.start - 1)) // spec.sequence_length
    ends, start = found.ends()[span.documents], span.tokens.start
    return len(packed(ends, spec.sequence_length, split=not found.marked, start=start).ends)


def counted(spec: RunSpec, samples: int) -> RunSpec:
    """The run with the samples of an epoch as counted when its data was opened."""
    return edit.changed(spec, "data.samples", samples) if spec.counts_epochs else spec
