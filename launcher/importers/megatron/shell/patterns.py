"""Patterns of the shell (``*``, ``?``, ``[...]``) and the few regular expressions that cannot take long."""

import fnmatch
import re
from functools import lru_cache

MOST = 1000  # Characters of a text that is matched piece by piece, which takes a time that grows with their square.
_SPECIAL = re.compile(r"[*?\[\\]")
_EXTENDED = re.compile(r"([@!*+?])\(([^()]*)\)\Z")
_REGEX = re.compile(r"[^()*+{}?\\]*(?:\([\w.|-]*\))?(?:\[[^\]]+\]|[^()*+{}?\\])?[*+]?\$?\Z")
"""At most one group without repetition and one repetition: nothing in it can be tried in many ways."""


def escaped(text: str) -> str:
    """The pattern that matches this text alone."""
    return re.sub(r"([*?\[\]\\@!+()|])", r"\\\1", text)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    """The expression of a pattern, with brackets for backslashes as ``fnmatch`` quotes; linear time for each ``*``."""
    plain = re.sub(r"\\(.)", lambda match: f"[{match[1]}]" if match[1] in "*?[" else match[1], pattern, flags=re.DOTALL)
    try:
        return re.compile(fnmatch.translate(plain.replace("[^", "[!")))
    except re.error:
        return re.compile(re.escape(pattern) + r"\Z")


def matches(pattern: str, text: str) -> bool | None:
    """True if the pattern matches the whole text; None where it is of a kind that is not followed."""
    extended = _EXTENDED.match(pattern)
    if extended is None:
        return _compiled(pattern).match(text) is not None
    found = any(_compiled(choice).match(text) for choice in extended[2].split("|"))
    if extended[1] in "@!":
        return found is (extended[1] == "@")
    return True if found else None


def search(expression: str, text: str) -> bool | None:
    """True if a regular expression is found in the text; None where it is of a kind that is not followed."""
    if not _REGEX.match(expression) or len(text) > MOST:
        return None
    try:
        return re.search(expression, text) is not None
    except re.error:
        return None


def cut(text: str, pattern: str, *, end: bool, longest: bool) -> str | None:
    """The text without the part at its beginning or end that the pattern matches; None where it is too long."""
    if not _SPECIAL.search(pattern):
        return text.removesuffix(pattern) if end else text.removeprefix(pattern)
    if len(text) > MOST:
        return None
    lengths = range(len(text), -1, -1) if longest else range(len(text) + 1)
    for length in lengths:
        at = len(text) - length if end else length
        piece, rest = (text[at:], text[:at]) if end else (text[:at], text[at:])
        if matches(pattern, piece):
            return rest
    return text


def replace(text: str, pattern: str, by: str, *, every: bool) -> str | None:
    """The text with what the pattern matches replaced; None where a pattern with ``*`` has too long a text."""
    if not _SPECIAL.search(pattern):
        return text.replace(pattern, by, -1 if every else 1) if pattern else text
    if len(text) > MOST // 16:
        return None
    found, at = "", 0
    while at < len(text):
        length = next((size for size in range(len(text) - at, 0, -1) if matches(pattern, text[at : at + size])), 0)
        found += by if length else text[at]
        at += length or 1
        if length and not every:
            break
    return found + text[at:]
