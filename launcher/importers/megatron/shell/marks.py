"""Text with parts that are not known: such a part is a mark, with the text to show and the names to ask for.

The names of a mark are variables that have no value (``TP``), variables whose value is not known here although the file
sets them (``~TP``, as by a command substitution), and decisions between branches (``?3``).
"""

import re
from collections.abc import Iterable, Mapping

MARK = "\0"
_BETWEEN = "\1"
_MARKED = re.compile(f"{MARK}([^{MARK}{_BETWEEN}]*){_BETWEEN}([^{MARK}{_BETWEEN}]*){MARK}")
_PLACEHOLDER = re.compile(r"(?<![<\w&])<([^\W\d][\w./:-]*(?:,? [^\W\d][\w./:-]*)*)>(?![>&(])")
"""``<DATA_PATH>``, ``<path to the data>``: a word that its author left to the reader.

Redirections have blanks between their two signs, or words such as ``2>`` that begin with no letter.
"""

_TOKENS = frozenset((
    "s", "unk", "pad", "mask", "bos", "eos", "eod", "sep", "cls", "image", "video", "audio", "think", "end", "start",
    "endoftext", "fim_prefix", "fim_middle", "fim_suffix",
))  # fmt: skip
"""Names of tokens, which are written in angle brackets, too."""


def placeholders(text: str, given: Mapping[str, str]) -> str:
    """The text with a mark in place of each placeholder, or the value that is given for its name."""

    def replace(match: re.Match[str]) -> str:
        name = _placeholder_name(match[1])
        return match[0] if match[1] in _TOKENS else given[name] if name in given else mark(match[0], [name])

    return _PLACEHOLDER.sub(replace, text) if "<" in text else text


def placeholder_names(text: str) -> set[str]:
    """The names of the placeholders of a text, as a user gives them."""
    return {_placeholder_name(match[1]) for match in _PLACEHOLDER.finditer(text) if match[1] not in _TOKENS}


def _placeholder_name(inside: str) -> str:
    name = re.sub(r"\W+", "_", inside, flags=re.ASCII).strip("_")
    return name if name[:1].isalpha() else f"placeholder_{name}".rstrip("_")


def mark(shown: str, names: Iterable[str] = ()) -> str:
    """A part that is not known."""
    return f"{MARK}{plain(shown)}{_BETWEEN}{','.join(dict.fromkeys(names))}{MARK}"


def is_known(text: str) -> bool:
    """True if no part of the text is a mark."""
    return MARK not in text


def names(text: str) -> tuple[str, ...]:
    """The names to ask for the marks of a text."""
    return tuple(dict.fromkeys(name for match in _MARKED.finditer(text) for name in match[2].split(",") if name))


def plain(text: str) -> str:
    """The text as it is shown."""
    return _MARKED.sub(r"\1", text) if MARK in text else text


def without(text: str) -> str:
    """The text with nothing in place of its marks."""
    return _MARKED.sub("", text)


def is_unset(text: str) -> bool:
    """True if nothing of the text is known, and that only since variables have no value."""
    asked = names(text)
    return bool(asked) and not without(text) and all(name[0] not in "~?" for name in asked)


def owned(text: str, name: str) -> str:
    """The value of a variable: what nobody can be asked for is asked for by the variable's own name."""
    if is_known(text):
        return text
    whole = _MARKED.fullmatch(text)
    if whole and not whole[2]:
        return mark(f"${name}", [f"~{name}"])
    return _MARKED.sub(lambda match: match[0] if match[2] else mark(match[1], [f"~{name}"]), text)


def decided(text: str, name: str) -> str:
    """A value that a decision has chosen: its words are marks, so that they stay words."""
    asked = [*names(text), name]
    if not plain(text).strip():
        return mark("", asked)
    return re.sub(r"\S+", lambda match: mark(match[0], asked), plain(text))


def variables(asked: Iterable[str]) -> tuple[str, ...]:
    """The names of variables among the names of marks."""
    return tuple(dict.fromkeys(name.lstrip("~") for name in asked if not name.startswith("?")))
