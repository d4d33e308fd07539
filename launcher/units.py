"""Bytes are integers inside the program; GiB (2^30) appear in text only."""

from __future__ import annotations

from functools import lru_cache

KIB = 2**10
MIB = 2**20
GIB = 2**30

DTYPE_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of one element of each number format."""


def gib(size: int) -> str:
    """A size in bytes as text in GiB, or in MiB below a tenth of a GiB: ``"12.85 GiB"``, ``"3.2 MiB"``."""
    if abs(size) < GIB // 10:
        return f"{size / MIB:.1f} MiB"
    return f"{size / GIB:.2f} GiB"


@lru_cache(maxsize=1024)
def count(number: int) -> str:
    """A count as people say it: ``"6.74 B"`` for 6,738,415,616."""
    for limit, suffix in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= limit:
            return f"{number / limit:.2f} {suffix}"
    return str(number)
