"""The largest micro-batch, sequence or model that a cluster can train.

Each candidate is a separate question. Micro-batches are the divisors of the global batch. Sequence lengths are powers
of two, and the quarters between the longest that fits and the next; lengths beyond the model's positions come with the
word that extends them. Models are the options of ``model``. Typed words are kept; assumptions are made anew for each
candidate, so that with an assumed batch a longer sequence keeps the tokens per step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.estimate import families
from launcher.estimate.rank.counts import parameter_counts
from launcher.planner import feasibility
from launcher.planner.judge import Preflight
from launcher.planner.question import Question
from launcher.spec import edit
from launcher.spec.edit import override

MICRO_BATCH, SEQUENCE, POSITIONS = "train.micro_batch_size", "train.sequence_length", "model.max_position_embeddings"

_LIMITS = {
    "micro_batch": "it is the whole global batch",
    "sequence": "the model has no more positions (model.max_position_embeddings)",
    "model": "no preset is larger",
}
"""Why there is no candidate larger than the last one."""

KEYS = {"micro_batch": (MICRO_BATCH, "train.gradient_accumulation"), "sequence": (SEQUENCE,), "model": ("model",)}
"""The keys of each kind, which the words must leave open."""

_SHORTEST, _LONGEST = 8, 22
"""Shortest and longest sequence tried, in tokens as powers of two; no known model takes more than the longest."""

_REPORTED = 2  # Larger candidates reported, each with the reason why nothing fits.

type Asking = Callable[[Sequence[str]], Question]
"""Reads the question with further words appended."""


class Tried(NamedTuple):
    """A larger candidate: its words, its sequences, tokens or parameters, and why nothing fits with it."""

    words: tuple[str, ...]
    value: int
    lacks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest candidate that fits, and why larger ones do not."""

    kind: str  # The kind that was asked for.
    words: tuple[str, ...] = ()  # The words that choose the largest; empty if none fits.
    value: int = 0  # Its sequences, tokens or parameters.
    question: Question | None = None  # The question with it.
    larger: tuple[Tried, ...] = ()  # The next larger ones, in the order of size.
    limit: str = ""  # Why nothing larger was tried, unless larger ones do not fit.


class _Candidate(NamedTuple):
    words: tuple[str, ...]
    value: int
    question: Question


def largest(kind: str, question: Question, judge: Preflight, asking: Asking) -> Largest:
    """Find the largest ``micro_batch``, ``sequence`` or ``model``, which the question leaves open.

    Raises ConfigErrors: The words set what is searched for.
    """
    taken = [key for key in KEYS[kind] if key in question.fixed]
    if taken:
        rule = f"it searches for the largest that fits, but {taken[0]} is set: leave one of them out"
        raise ConfigErrors([ConfigError("--largest", kind, rule)])
    return _LOOKING[kind](question, judge, asking)


def _micro_batch(question: Question, judge: Preflight, _: Asking) -> Largest:
    sizes = edit.divisors(question.openings[0].spec.global_batch_size)
    fixed = question.fixed | {MICRO_BATCH}
    asked = [replace(question, fixed=fixed, choices={**question.choices, MICRO_BATCH: (size,)}) for size in sizes]
    words = [(override(MICRO_BATCH, size),) for size in sizes]
    return _from_above("micro_batch", list(map(_Candidate, words, sizes, asked)), judge)


def _sequence(question: Question, judge: Preflight, asking: Asking) -> Largest:
    """Powers of two up to the model's positions and beyond, and the quarters above the longest that fits."""
    model = question.openings[0].spec.model
    limit = model.max_position_embeddings

    def candidate(size: int) -> _Candidate:
        longer = (override(POSITIONS, size),) if size > limit else ()
        words = (override(SEQUENCE, size), *longer)
        return _Candidate(words, size, asking(words))

    def fits(candidate: _Candidate) -> bool:
        return feasibility.attempt(candidate.question, judge).fits is not None

    powers = [2**power for power in range(_SHORTEST, _LONGEST + 1)]
    inside = [*(size for size in powers if size < limit), limit]
    typed = any(word.startswith(f"{POSITIONS}=") for word in question.words)
    beyond = [size for size in powers if size > limit] if model.position_embedding == "rope" and not typed else []
    found, above = _longest([*inside, *beyond], candidate, fits)
    return _answer("sequence", found, above, judge)


def _longest(
    sizes: Sequence[int], candidate: Callable[[int], _Candidate], fits: Callable[[_Candidate], bool]
) -> tuple[list[_Candidate], list[_Candidate]]:
    """The candidates that fit, in the order of size, and the first larger one that does not."""
    found: list[_Candidate] = []
    for size in sizes:
        asked = candidate(size)
        if fits(asked):
            found.append(asked)
        elif found:
            return [*found, *_between(found[-1].value, size, candidate, fits)], [asked]
    return found, [] if found else [candidate(sizes[0])]


def _between(
    below: int, above: int, candidate: Callable[[int], _Candidate], fits: Callable[[_Candidate], bool]
) -> Iterator[_Candidate]:
    """The quarter points between two sizes that fit: first the half, then the quarter on the undecided side."""
    quarter = (above - below) // 4
    if not quarter:
        return
    half = candidate(below + 2 * quarter)
    is_enough = fits(half)
    if is_enough:
        yield half
    further = candidate(below + (3 if is_enough else 1) * quarter)
    if fits(further):
        yield further


def _model(question: Question, judge: Preflight, asking: Asking) -> Largest:
    presets = (_preset(name, asking) for name in question.catalog.groups["model"])
    return _from_above("model", sorted(presets, key=lambda each: each.value), judge)


def _preset(name: str, asking: Asking) -> _Candidate:
    words = (override("model", name),)
    question = asking(words)
    spec = question.openings[0].spec
    return _Candidate(words, parameter_counts(spec, families.of(spec.model))[0], question)


def _from_above(kind: str, candidates: Sequence[_Candidate], judge: Preflight) -> Largest:
    """The answer from candidates in the order of size; the largest are tried first."""
    for place in reversed(range(len(candidates))):
        if feasibility.attempt(candidates[place].question, judge).fits is not None:
            return _answer(kind, candidates[place : place + 1], candidates[place + 1 :], judge)
    return _answer(kind, [], candidates, judge)


def _answer(kind: str, fits: Sequence[_Candidate], above: Sequence[_Candidate], judge: Preflight) -> Largest:
    larger = [each for each in above if not fits or each.value >= fits[-1].value][:_REPORTED]
    tried = tuple(Tried(each.words, each.value, feasibility.lacks(each.question, judge)) for each in larger)
    if not fits:
        return Largest(kind=kind, larger=tried)
    _, value, asked = fits[-1]
    limit = "" if tried else _LIMITS[kind]
    return Largest(kind=kind, words=fits[-1].words, value=value, question=asked, larger=tried, limit=limit)


_LOOKING = {"micro_batch": _micro_batch, "sequence": _sequence, "model": _model}
