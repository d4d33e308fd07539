"""Types of the values of a specification: ranges, formats, devices, names; and groups that cache their hash."""

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Literal

from launcher.base.frozen import dataclass


class Hashed:
    """A frozen dataclass that computes its hash once, since planning looks it up in caches thousands of times.

    The hash is not a field: it is not compared, printed or pickled.
    """

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        """The hash of the fields, except those with ``hash=False``."""
        try:
            return self._hash
        except AttributeError:
            kind: Any = type(self)
            found = hash(_hashed_fields(kind)(self))
            object.__setattr__(self, "_hash", found)
            return found


@cache
def _hashed_fields(cls: type) -> Callable[[object], object]:
    return attrgetter(*(field.name for field in fields(cls) if field.hash is not False))


def by_identity[G, *Others, T](most: int) -> Callable[[Callable[[G, *Others], T]], Callable[[G, *Others], T]]:
    """Return a decorator that caches results by the identity of the first argument, a group, and the others' values.

    The points of a sweep and the neighbours of a run share most of their groups, and looking one up by its values takes
    as long as computing the result. Equal groups have separate results, since 1 and 1.0 differ as text. A result holds
    a reference to its group, so that no other group can take its id; beyond ``most`` results the cache is cleared.
    """

    def with_answers(function: Callable[[G, *Others], T]) -> Callable[[G, *Others], T]:
        answers: dict[tuple[object, ...], tuple[G, T]] = {}

        def answer(group: G, *others: *Others) -> T:
            key = (id(group), *others)
            found = answers.get(key)
            if found is None:
                if len(answers) >= most:
                    answers.clear()
                found = answers[key] = group, function(group, *others)
            return found[1]

        return answer

    return with_answers


@dataclass(frozen=True, slots=True)
class Range:
    """The closed range that a number must be in; a missing end is open. Read by ``parse``."""

    low: float | None = None
    high: float | None = None
    usual: float | None = None  # Set if the upper end is excluded: the value that a way out proposes.

    def holds(self, value: float) -> bool:
        """True if a number is in the range."""
        return (self.low is None or value >= self.low) and (
            self.high is None or value < self.high or (value == self.high and self.usual is None)
        )

    def words(self, kind: str) -> str:
        """The range in words after a kind of number: ``"an integer of at least 1"``."""
        above_0 = self.low is not None and 0 < self.low < 1
        if self.low is not None and self.high is not None:
            end = f"{'' if self.usual is None else 'below '}{self.high:g}"
            return f"{kind} above 0, at most {end}" if above_0 else f"{kind} from {self.low:g} to {end}"
        if self.low is not None:
            return f"{kind} above 0" if above_0 else f"{kind} of at least {self.low:g}"
        return kind if self.high is None else f"{kind} of at most {self.high:g}"


# Upper limits depend on the key: ``launcher.spec.bounds``.
type Count = Annotated[int, Range(low=1)]
type Natural = Annotated[int, Range(low=0)]
type Positive = Annotated[float, Range(low=1e-30)]
type Small = Annotated[float, Range(low=1e-30, high=1)]  # transformers takes no wider initializer_range.
type Factor = Annotated[float, Range(low=1)]
type NonNegative = Annotated[float, Range(low=0)]
type Probability = Annotated[float, Range(low=0, high=1)]
type Dropped = Annotated[float, Range(low=0, high=1, usual=0.0)]
type Dtype = Literal["fp32", "fp16", "bf16", "fp8", "fp4"]
type Stored = Literal["fp32", "fp16", "bf16"]  # No engine stores or accumulates parameters or gradients in fewer bits.
type Device = Literal["cpu", "cuda"]
type Offload = Literal["none", "cpu", "nvme"]


def beside_products(compute: Dtype) -> Dtype:
    """The format of everything except matrix products: bf16 if these are in fewer than 16 bits, else the same."""
    return "bf16" if compute in ("fp8", "fp4") else compute


def set_names(words: Iterable[str]) -> list[str]:
    """Return unique names for evaluation data sets: letters and digits, with ``_``, ``.`` and ``-`` between them.

    Every tracker accepts them in a metric's name. A word that is already such a name is kept.
    """
    found = list[str]()
    for word in words:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", word).strip("_.-") or "set"
        others = (f"{name}-{number}" for number in itertools.count(2))
        found.append(next(each for each in itertools.chain((name,), others) if each not in found))
    return found
