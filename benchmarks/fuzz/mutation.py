"""Hostile and invalid values, and files changed with them in their data, characters or bytes."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

MARK = "pwned"
HOSTILE = (
    f"$(touch {MARK})",
    f"`touch {MARK}`",
    f"; touch {MARK}",
    f"'; touch {MARK}; '",
    f'"$(touch {MARK})"',
    f"a\ntouch {MARK}",
    f"| touch {MARK} #",
    f"../{MARK}",
    f"{{a:{MARK}}}",
    f"[{MARK},",
    f"\\{MARK}\\",
    f"{MARK}\x00",
    f"é {MARK} 漢",
    f"\x1b]0;{MARK}\x07",
    f"\u202e{MARK}\u2066",
    f"\x9b31m{MARK}\u2028",
)
PLAIN = ("0", "1", "2", "3", "8", "7", "-1", "1e-5", "1e400", "nan", "null", "true", "", "[]", "{}", "a", "1" * 40)
_TEXTS = (
    *HOSTILE,
    "",
    "auto",
    "x" * 5_000,
    "1:2:3",
    "1_0",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
)
_NUMBERS = (0, 1, -1, 2, 3, 7, 10**12, 2**63, 2**64, 10**400, 0.5, -1e-9, 1e308, float("inf"), float("nan"))
_INSERTED = (
    *(value.encode() for value in HOSTILE),
    *(
        b"\xff\xfe",
        b"\x00",
        b"\r\n",
        b"[" * 3_000,
        b"{" * 3_000,
        b"9" * 5_000,
        b"1:" * 2_000,
        b"&a *a",
        b"*a",
        b"!!python/none",
    ),
    *(b"${oc.env:HOME}", b"$HOME", b"\t", b": ", b"--spec os system", b"\xe2\x80\xa8", b"\xc2\x85", b'"', b"'", b"\\"),
)


def value(chance: random.Random) -> str:
    """A word's value."""
    return chance.choice(HOSTILE if chance.random() < 0.4 else PLAIN)


def anything(chance: random.Random) -> Any:
    """A value of any type that JSON has, NaN and the infinities included."""
    draw = chance.random()
    if draw < 0.4:
        return chance.choice(_NUMBERS)
    if draw < 0.75:
        return chance.choice(_TEXTS)
    deep: Any = chance.choice((1, "x", None))
    for _ in range(chance.choice((1, 2, 900))):
        deep = [deep] if chance.random() < 0.5 else {"a": deep}
    return chance.choice((None, True, False, [], {}, [1, "x"], deep))


def data(chance: random.Random, content: Any) -> Any:
    """A copy of JSON data with one to three changes: a value replaced, a key removed, one added."""
    changed = copy.deepcopy(content)
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.05 or not isinstance(changed, dict | list) or not changed:
            return anything(chance)
        _change(chance, changed)
    return changed


def _change(chance: random.Random, content: dict[str, Any] | list[Any]) -> None:
    places: list[Any] = list(content) if isinstance(content, dict) else list(range(len(content)))
    place = chance.choice(places)
    inner = content[place]
    if isinstance(inner, dict | list) and inner and chance.random() < 0.7:
        _change(chance, inner)
    elif chance.random() < 0.25:
        del content[place]
    elif isinstance(content, dict) and chance.random() < 0.2:
        content[chance.choice(_TEXTS)] = anything(chance)
    else:
        content[place] = anything(chance)


def text(chance: random.Random, content: bytes) -> bytes:
    """The bytes with one to three deletions or insertions, sometimes truncated."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(content) + 1)
        content = content[:at] + chance.choice(_INSERTED) + content[at + chance.choice((0, 0, 1, 9)) :]
    return content[: chance.randrange(len(content) + 1)] if chance.random() < 0.15 else content


def either(chance: random.Random, content: Any) -> bytes:
    """JSON changed in its data, or in its bytes."""
    if chance.random() < 0.6:
        return _as_json(data(chance, content))
    return text(chance, json.dumps(content).encode())


def _as_json(content: Any) -> bytes:
    try:
        return json.dumps(content).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # An integer of too many digits for Python itself.
        return b"[" * 2_000
