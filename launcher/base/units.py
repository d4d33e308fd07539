"""Numbers as text. Bytes are integers inside the program; GiB (2^30) appear only in text."""

import math
import re
from collections.abc import Callable
from functools import lru_cache

from launcher.base.frozen import dataclass

KIB = 2**10
MIB = 2**20
GIB = 2**30
DTYPE_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}  # Bytes of one element of each number format.


def gib(size: int) -> str:
    """Return a size in bytes as text in GiB, or in MiB below a tenth of a GiB: ``"12.85 GiB"``, ``"3.2 MiB"``."""
    return f"{size / MIB:.1f} MiB" if abs(size) < GIB // 10 else f"{size / GIB:.2f} GiB"


def request(size: int, free: int | None) -> str:
    """Return a requested and the free size as text, in bytes if they would read the same in GiB."""
    if free is None:
        return gib(size)
    if size != free and gib(size) == gib(free):
        return f"{size:,} bytes with {free:,} free"
    return f"{gib(size)} with {gib(free)} free"


def bytes_of(text: str) -> int | None:
    """Return the bytes of a size in text: 50GB is 50 * 10^9, 50GiB and 50G are 50 * 2^30; None if it is no size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])(B|iB)?", text, re.IGNORECASE)
    if found is None:
        return None
    base = 1000 if (found[3] or "").lower() == "b" else 1024
    return int(float(found[1]) * base ** ("KMGT".index(found[2].upper()) + 1))


def count_of(text: str) -> int | None:
    """Return a count of tokens, steps or samples in text: 2B is 2 * 10^9, 4k is 4096; None if it is no count."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMBGT])", text)
    factor = {"k": 1024, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
    return None if found is None else int(float(found[1]) * factor[found[2].lower()])


_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = r"(\d+(?:\.\d+)?)\s*(d|h|m|s)(?:ay|our|r|in|inute|ec|econd)?s?\s*"


def seconds_of(text: str) -> int | None:
    """Return the seconds of a time as people or Slurm write it: ``24h``, ``1d 12h``, ``24:00:00``, ``1-12``, or None.

    Slurm's forms (sbatch(1), ``--time``): minutes, minutes:seconds, hours:minutes:seconds, and days-hours, to which
    minutes and seconds may be added in the same way.
    """
    text = text.strip()
    if re.fullmatch(f"(?:{_PART})+", text, re.IGNORECASE):
        amounts = re.findall(_PART, text, re.IGNORECASE)
        return math.ceil(sum(float(number) * _UNIT_S[unit[0].lower()] for number, unit in amounts))
    found = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9}(?::\d{1,9}){0,2})", text)
    if found is None:
        return None
    days, parts = found[1], [int(part) for part in found[2].split(":")]
    begins_with_hours = bool(days) or len(parts) == 3
    hours, minutes, seconds = [*([] if begins_with_hours else [0]), *parts, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


_SAME = 1  # Percent by which two speeds may differ and still count as equal: the model is not more precise.


@lru_cache(maxsize=1024)
def count(number: int) -> str:
    """Return a count in short form: ``"6.74 B"`` for 6,738,415,616."""
    for limit, suffix in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= limit:
            return f"{number / limit:.2f} {suffix}"
    return str(number)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 layer``, ``2 layers``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def steps(number: int) -> str:
    """Return a number of optimizer steps as text: ``1 step``, ``1,000 steps``."""
    return f"{number:,} {'step' if number == 1 else 'steps'}"


def duration(seconds: float | None) -> str:
    """Return seconds as text: ``0.072 s``, ``45 s``, ``12 min``, ``3 h 05 min``, ``2 d 4 h``; ``-`` for None."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{rounded(seconds, 2)} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def rounded(number: float, digits: int = 3) -> str:
    """Return a number with some significant digits: ``"10,900"`` for 10,871, ``"3.0"`` for 2.96 with two."""
    if abs(number) >= 10**digits:
        return f"{float(f'{number:.{digits}g}'):,.0f}"
    return f"{number:#.{digits}g}".rstrip(".") if number else "0"


def compared(ratio: float) -> str:
    """Return a ratio of speeds in words: ``24% slower``, ``about as fast``, ``3% faster``, ``2.1 times as fast``."""
    percent = round(100 * (ratio - 1))
    if abs(percent) <= _SAME:
        return "about as fast"
    if percent >= 100:
        return f"{ratio:.1f} times as fast"
    return f"{abs(percent)}% {'faster' if percent > 0 else 'slower'}"


@dataclass(frozen=True, slots=True)
class Pair[N: (int, float)]:
    """A predicted and a measured figure; None is unknown."""

    predicted: N | None
    measured: N | None

    @property
    def difference(self) -> N | None:
        """The measured figure minus the predicted one."""
        return None if self.predicted is None or self.measured is None else self.measured - self.predicted

    @property
    def share(self) -> float | None:
        """The measured figure divided by the predicted one; None if either is unknown."""
        return self.measured / self.predicted if self.predicted and self.measured is not None else None

    @property
    def error(self) -> float | None:
        """The predicted figure over the measured one, less one; None where nothing was measured."""
        return self.predicted / self.measured - 1 if self.predicted is not None and self.measured else None

    @property
    def known(self) -> list[N]:
        """The figures that are known."""
        return [value for value in (self.predicted, self.measured) if value is not None]

    def texts(self, form: Callable[[N], str], unknown: str = "-") -> tuple[str, str]:
        """Both figures as text."""
        predicted, measured = (unknown if value is None else form(value) for value in (self.predicted, self.measured))
        return predicted, measured
