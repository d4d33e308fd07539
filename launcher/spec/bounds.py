"""The largest and smallest values of every numeric key that mean anything, each with its reason.

The types of the specification say what a number is, and that a share is at most 1; this table says how large all others
can be, so that a slip of the hand is an answer and not a run. A bound lies far beyond what anybody has trained: it must
never refuse a real run. A key without a line here is bounded by 64 bits alone; ``tests/spec/test_bounds.py`` asks for
the line.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass

LONGEST_NAME = 200
"""Bytes: Linux takes 255 for a folder (limits.h, NAME_MAX), and a record is written under a longer name first."""

LARGEST_SCALE_POWER = 40  # The largest loss scale, as a power of two, which is how DeepSpeed's own file has it.


@dataclass(frozen=True, slots=True)
class Bound:
    """The ends of a key's values, and the reason in words that follow a colon."""

    most: float | None  # The largest value; None where 64 bits are as good a bound as any.
    why: str  # The reason, or why there is none.
    least: float | None = None  # The smallest value but 0, where it is not the type's own.


_ROWS: list[JsonObject] = json.loads(Path(__file__).with_suffix(".json").read_text())
"""Keys with blanks between them, the bound of each, and where it says more than the reason a note."""

BOUNDS: Mapping[str, Bound] = {
    key: Bound(row.get("most"), row["why"], row.get("least")) for row in _ROWS for key in row["keys"].split()
}
_NAMES = frozenset({"run.name", "model.name", "parallel.name", "hardware.name"})
"""Texts that become names of folders; one with slashes is several."""


def wrong(path: str, value: object) -> tuple[str, list[str]] | None:
    """The rule that a value of the right type breaks by its size, and the nearest that breaks none; else None."""
    if isinstance(value, str):
        too_long = path in _NAMES and any(len(part) > LONGEST_NAME for part in _parts(value))
        rule = f"must be of at most {LONGEST_NAME} bytes, since a folder is called so"
        return (f"{rule}, and file systems take 255 for its name", []) if too_long else None
    if isinstance(value, bool) or not isinstance(value, int | float) or (bound := BOUNDS.get(path)) is None:
        return None
    if bound.most is not None and value > bound.most:
        counts = isinstance(bound.most, int) and bound.most < 10**10
        return f"must be at most {bound.most:{',' if counts else 'g'}}: {bound.why}", [f"{path}={bound.most}"]
    if bound.least is not None and 0 < value < bound.least:
        rule = f"must be 0 or at least {bound.least:g}: what is smaller leaves nothing that fp32 resolves"
        return rule, [f"{path}={bound.least}"]
    return None


def _parts(name: str) -> Iterable[bytes]:
    return name.encode(errors="surrogateescape").split(b"/")
