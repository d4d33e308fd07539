"""The ends of quotes, braces, parentheses and words in shell text."""

import re

from launcher.importers.megatron.shell.marks import MARK
from launcher.importers.megatron.shell.tree import DEEPEST, ShellError

_PLAIN = re.compile(r"[^\s;&|<>()'\"`$\\\0]+")
_IN_DOUBLE = re.compile(r"[^\"`$\\\0]+")
_IN_BRACES = re.compile(r"[^}'\"`$\\\0]+")
_IN_PARENS = re.compile(r"[^()'\"`$\\#<\0]+")
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"\\]?)(\w+)")


def end_of_word(text: str, at: int) -> int:
    """The place behind the word that begins here."""
    start = at
    while at < len(text):
        if plain := _PLAIN.match(text, at):
            at = plain.end()
        elif text[at] == "(" and at > start and text[at - 1] in "@!*+?":
            at = end_of_parens(text, at + 1, 0)
        elif text[at] in "<>" and text[at + 1 : at + 2] == "(" and at == start:
            at = end_of_parens(text, at + 2, 0)
        elif text[at].isspace() or text[at] in ";&|<>()":
            return at
        else:
            at = _after(text, at, 0)
    return at


def _after(text: str, at: int, depth: int) -> int:
    """The place behind the quoted or special piece that begins here; behind one character where it is none."""
    if depth > DEEPEST:
        raise ShellError(f"quotes and substitutions are nested deeper than {DEEPEST}")
    sign = text[at]
    if sign == "\\":
        return min(at + 2, len(text))
    if sign == "'":
        return _find(text, "'", at + 1)
    if sign == '"':
        return end_of_double(text, at + 1, depth + 1)
    if sign == "`":
        return end_of_quote(text, at + 1, "`")
    if sign == MARK:
        return _find(text, MARK, at + 1)
    return _after_dollar(text, at, depth) if sign == "$" else at + 1


def _after_dollar(text: str, at: int, depth: int) -> int:
    following = text[at + 1 : at + 2]
    if following == "{":
        return end_of_braces(text, at + 2, depth + 1)
    if following == "(":
        return end_of_parens(text, at + 2, depth + 1)
    if following == "'":
        return end_of_quote(text, at + 2, "'")
    return at + 1


def _find(text: str, quote: str, at: int) -> int:
    end = text.find(quote, at)
    if end < 0:
        raise ShellError("No closing quotation")
    return end + 1


def end_of_quote(text: str, at: int, quote: str) -> int:
    """The place behind ``$'...'`` or a substitution in backticks, whose inside begins here."""
    while text[at : at + 1] not in {quote, ""}:
        at += 2 if text[at] == "\\" else 1
    return _find(text, quote, at)


def end_of_double(text: str, at: int, depth: int = 0) -> int:
    """The place behind a text in double quotes, whose inside begins here."""
    return _end(text, at, depth, _IN_DOUBLE, '"', "No closing quotation")


def end_of_braces(text: str, at: int, depth: int = 0) -> int:
    """The place behind ``${...}``, whose inside begins here."""
    return _end(text, at, depth, _IN_BRACES, "}", "No closing brace of ${")


def _end(text: str, at: int, depth: int, inside: re.Pattern[str], sign: str, problem: str) -> int:
    while at < len(text):
        if plain := inside.match(text, at):
            at = plain.end()
        elif text[at] == sign:
            return at + 1
        else:
            at = _after(text, at, depth)
    raise ShellError(problem)


def end_of_parens(text: str, at: int, depth: int = 0) -> int:
    """The place behind ``$(...)``, ``$((...))`` or an array, whose inside begins here."""
    level = 1
    while at < len(text):
        if plain := _IN_PARENS.match(text, at):
            at = plain.end()
        elif text[at] in "()":
            level += 1 if text[at] == "(" else -1
            at += 1
            if not level:
                return at
        elif text[at] == "#":
            at = _after_hash(text, at)
        elif text[at] == "<":
            at = _after_less(text, at)
        else:
            at = _after(text, at, depth)
    raise ShellError("No closing parenthesis")


def _after_hash(text: str, at: int) -> int:
    if text[at - 1].isspace() or text[at - 1] == "(":
        return max(text.find("\n", at), at + 1)
    return at + 1


def _after_less(text: str, at: int) -> int:
    if heredoc := _HEREDOC.match(text, at):
        end = re.compile(rf"\n[ \t]*{re.escape(heredoc[2])}(?=[ \t]*(\n|\)|\Z))").search(text, heredoc.end())
        return end.end() if end else heredoc.end()
    return at + 1
