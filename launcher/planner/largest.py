"""The largest micro-batch, sequence or model that a cluster trains.

Each candidate is a question of its own, and one that something fits is answered by its fastest layout. Micro-batches
are the divisors of the global batch: one fits only where those that divide it do, so that the others need no look.
Sequences are powers of two and the quarters between the longest that fits and the next. Models are the options of
``model``, the one with the most parameters first. What is fixed stays, and what is assumed is assumed for each anew:
a longer sequence leaves the tokens of a step as they are, where their number is not typed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from launcher import families
from launcher.errors import ConfigError, ConfigErrors
from launcher.planner import fitting
from launcher.planner.judge import Judge
from launcher.planner.question import Question
from launcher.rank.counts import parameter_counts
from launcher.spec import nearest
from launcher.spec.edit import override

MICRO_BATCH, SEQUENCE, POSITIONS = "train.micro_batch_size", "train.sequence_length", "model.max_position_embeddings"

KEYS = {
    "micro_batch": (MICRO_BATCH, "train.gradient_accumulation"),
    "sequence": (SEQUENCE,),
    "model": ("model",),
}
"""The keys of each kind, which the words must leave open."""

_SHORTEST, _LONGEST = 8, 22
"""Tokens of the sequences that are tried, as powers of two; no model is known of that takes more than the last."""

_TOLD = 2
"""Larger candidates that are told with the reason why nothing fits."""

type Asking = Callable[[Sequence[str]], Question]
"""Reads the words of the question with further ones behind them."""


class Tried(NamedTuple):
    """A larger candidate: its words, its sequences, tokens or parameters, and why nothing fits with it."""

    words: tuple[str, ...]
    value: int
    lacks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The answer.

    Attributes:
        kind: The kind that was asked for.
        words: The words that choose the largest; empty where nothing fits with any.
        value: Its sequences, tokens or parameters.
        question: The question with it.
        larger: The next ones, in the order of size; none where nothing larger may be tried.
    """

    kind: str
    words: tuple[str, ...] = ()
    value: int = 0
    question: Question | None = None
    larger: tuple[Tried, ...] = ()


class _Candidate(NamedTuple):
    """One that is asked about."""

    words: tuple[str, ...]
    value: int
    question: Question


def largest(kind: str, question: Question, judge: Judge, asking: Asking) -> Largest:
    """Look for the largest.

    Args:
        kind: ``micro_batch``, ``sequence`` or ``model``.
        question: The question, which leaves that open.
        judge: Rules and estimates.
        asking: Reads the question's words with further ones.

    Raises:
        ConfigErrors: The words say what is looked for.
    """
    taken = [key for key in KEYS[kind] if key in question.fixed]
    if taken:
        rule = f"it looks for the largest that fits, and the words say {taken[0]}: leave one of them out"
        raise ConfigErrors([ConfigError("--largest", kind, rule)])
    return _LOOKING[kind](question, judge, asking)


def _micro_batch(question: Question, judge: Judge, _: Asking) -> Largest:
    """Divisors of the global batch: one fits only where those that divide it do."""
    candidates, unfit = [], []
    for size in nearest.divisors(question.openings[0].spec.global_batch_size):
        if any(size % other == 0 for other in unfit):
            continue
        asked = _with(question, size)
        if fitting.attempt(asked, judge).fits is None:
            unfit.append(size)
        else:
            candidates.append(_Candidate((override(MICRO_BATCH, size),), size, asked))
    above = [_Candidate((override(MICRO_BATCH, size),), size, _with(question, size)) for size in unfit]
    return _answer("micro_batch", candidates, above, judge)


def _with(question: Question, size: int) -> Question:
    return replace(question, fixed=question.fixed | {MICRO_BATCH}, choices={**question.choices, MICRO_BATCH: (size,)})


def _sequence(question: Question, judge: Judge, asking: Asking) -> Largest:
    """Powers of two up to the model's positions and beyond them, and the quarters behind the longest that fits."""
    model = question.openings[0].spec.model
    limit = model.max_position_embeddings

    def candidate(size: int) -> _Candidate:
        longer = (override(POSITIONS, size),) if size > limit else ()
        words = (override(SEQUENCE, size), *longer)
        return _Candidate(words, size, asking(words))

    def fits(candidate: _Candidate) -> bool:
        return fitting.attempt(candidate.question, judge).fits is not None

    powers = [2**power for power in range(_SHORTEST, _LONGEST + 1)]
    inside = [*(size for size in powers if size < limit), limit]
    typed = any(word.startswith(f"{POSITIONS}=") for word in question.words)
    beyond = [size for size in powers if size > limit] if model.position_embedding == "rope" and not typed else []
    found, above = _longest([inside, beyond], candidate, fits)
    return _answer("sequence", found, above, judge)


def _longest(
    parts: Sequence[Sequence[int]], candidate: Callable[[int], _Candidate], fits: Callable[[_Candidate], bool]
) -> tuple[list[_Candidate], list[_Candidate]]:
    """The candidates that fit, in the order of size, and the first that does not; of each part if all before it do."""
    found: list[_Candidate] = []
    for size in (size for part in parts for size in part):
        asked = candidate(size)
        if fits(asked):
            found.append(asked)
        elif found:
            quarter = max(1, found[-1].value // 4)
            between = range(found[-1].value + quarter, size, quarter)
            last = next((each for each in map(candidate, reversed(between)) if fits(each)), None)
            return [*found, *([] if last is None else [last])], [asked]
    return found, [] if found else [candidate(parts[0][0])]


def _model(question: Question, judge: Judge, asking: Asking) -> Largest:
    """Presets by their parameters, the largest first, up to the first that fits."""
    presets = sorted((_preset(name, asking) for name in question.catalog.groups["model"]), key=lambda each: each.value)
    above: list[_Candidate] = []
    while presets and fitting.attempt(presets[-1].question, judge).fits is None:
        above.insert(0, presets.pop())
    return _answer("model", presets[-1:], above, judge)


def _preset(name: str, asking: Asking) -> _Candidate:
    words = (override("model", name),)
    question = asking(words)
    spec = question.openings[0].spec
    return _Candidate(words, parameter_counts(spec, families.of(spec.model))[0], question)


_LOOKING[kind](question, judge, asking)


def _micro_batch(question: Question, judge: Judge, _: Asking) -> Largest:
    """Divisors of the global batch: one fits only where those that divide it do."""
    candidates, unfit = [], []
    for size in nearest.divisors(question.openings[0].spec.global_batch_size):
        if any(size % other == 0 for other in unfit):
            continue
        asked = _with(question, size)
        if fitting.attempt(asked, judge).fits is None:
            unfit.append(size)
        else:
            candidates.append(_Candidate((override(MICRO_BATCH, size),), size, asked))
    above = [_Candidate((override(MICRO_BATCH, size),), size, _with(question, size)) for size in unfit]
    return _answer("micro_batch", candidates, above, judge)


def _with(question: Question, size: int) -> Question:
    return replace(question, fixed=question.fixed | {MICRO_BATCH}, choices={**question.choices, MICRO_BATCH: (size,)})


def _sequence(question: Question, judge: Judge, asking: Asking) -> Largest:
    """Powers of two up to the model's positions and beyond them, and the quarters behind the longest that fits."""
    model = question.openings[0].spec.model
    limit = model.max_position_embeddings

    def candidate(size: int) -> _Candidate:
        longer = (override(POSITIONS, size),) if size > limit else ()
        words = (override(SEQUENCE, size), *longer)
        return _Candidate(words, size, asking(words))

    def fits(candidate: _Candidate) -> bool:
        return fitting.attempt(candidate.question, judge).fits is not None

    powers = [2**power for power in range(_SHORTEST, _LONGEST + 1)]
    inside = [*(size for size in powers if size < limit), limit]
    typed = any(word.startswith(f"{POSITIONS}=") for word in question.words)
    beyond = [size for size in powers if size > limit] if model.position_embedding == "rope" and not typed else []
    found, above = _longest([inside, beyond], candidate, fits)
    return _answer("sequence", found, above, judge)


def _longest(
    parts: Sequence[Sequence[int]], candidate: Callable[[int], _Candidate], fits: Callable[[_Candidate], bool]
) -> tuple[list[_Candidate], list[_Candidate]]:
    """The candidates that fit, in the order of size, and the first that does not; of each part if all before it do."""
    found: list[_Candidate] = []
    for size in (size for part in parts for size in part):
        asked = candidate(size)
        if fits(asked):
            found.append(asked)
        elif found:
            quarter = max(1, found[-1].value // 4)
            between = range(found[-1].value + quarter, size, quarter)
            last = next((each for each in map(candidate, reversed(between)) if fits(each)), None)
            return [*found, *([] if last is None else [last])], [asked]
    return found, [] if found else [candidate(parts[0][0])]


def _model(question: Question, judge: Judge, asking: Asking) -> Largest:
    """Presets by their parameters, the largest first, up to the first that fits."""
    presets = sorted((_preset(name, asking) for name in question.catalog.groups["model"]), key=lambda each: each.value)
    above: list[_Candidate] = []
    while presets and fitting.attempt(presets[-1].question, judge).fits is None:
        above.insert(0, presets.pop())
    return _answer("model", presets[-1:], above, judge)


def _preset(name: str, asking: Asking) -> _Candidate:
    words = (override("model", name),)
    question = asking(words)
    spec = question.openings[0].spec
    return _Candidate(words, parameter_counts(spec, families.of(spec.model))[0], question)


def _trains(candidate: _Candidate, judge: Judge) -> bool:
    return fitting.attempt(candidate.question, judge).fits is not None


_LOOKING = {"micro_batch": _micro_batch, "sequence": _sequence, "model": _model}


def _answer(kind: str, fits: Sequence[_Candidate], above: Sequence[_Candidate], judge: Judge) -> Largest:
    """The answer from what fits and what does not, each in the order of size."""
    larger = [each for each in above if not fits or each.value >= fits[-1].value][:_TOLD]
    tried = tuple(Tried(each.words, each.value, fitting.lacks(each.question, judge)) for each in larger)
    if not fits:
        return Largest(kind=kind, larger=tried)
    return Largest(kind=kind, words=fits[-1].words, value=fits[-1].value, question=fits[-1].question, larger=tried)
