"""The nearest values with which a rule holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import isqrt

from launcher.spec import RunSpec
from launcher.spec.edit import changed, override, value_at

_TRIED = 1 << 13
"""The largest divisor that is looked for by itself, and how far from a number: any may be asked about, and the answer
is due at once."""


def divisors(number: int) -> list[int]:
    """All divisors in ascending order; of a number beyond 2^26 those with a small one beside them."""
    small = [candidate for candidate in range(1, min(isqrt(number), _TRIED) + 1) if number % candidate == 0]
    return sorted({*small, *(number // candidate for candidate in small)})


def multiples_around(number: int, step: int, count: int = 2) -> list[int]:
    """Positive multiples of ``step`` on both sides of ``number``, at most ``count`` on each."""
    below = number // step * step
    return [multiple for turn in range(1 - count, count + 1) if (multiple := below + turn * step) > 0]


def nearest(
    spec: RunSpec, path: str, candidates: Iterable[int], legal: Callable[[RunSpec], bool], limit: int = 8
) -> Iterator[str]:
    """Overrides of ``path`` with which ``legal`` holds, the nearest to the present value first.

    Args:
        spec: The run that breaks the rule.
        path: The setting to change.
        candidates: Values to try.
        legal: True for a run that the rule holds for.
        limit: The most that are returned; the pre-flight then keeps those that break no other rule.
    """
    value = value_at(spec, path)
    here = value if isinstance(value, int) else 0
    if isinstance(candidates, range):
        candidates = range(max(candidates.start, here - _TRIED), min(candidates.stop, here + _TRIED))
    ordered = sorted(set(candidates) - {here}, key=lambda candidate: (abs(candidate - here), candidate))
    found = (candidate for candidate in ordered if legal(changed(spec, path, candidate)))
    yield from (override(path, candidate) for candidate in islice(found, limit))
