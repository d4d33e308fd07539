"""Words of a script with the values put in, as bash does it: quotes, parameters, arrays, splitting."""

import re
from collections.abc import Iterator

from launcher.base.frozen import dataclass
from launcher.importers.megatron.shell import marks, quoting
from launcher.importers.megatron.shell.parameters import Parameters
from launcher.importers.megatron.shell.parser import parse
from launcher.importers.megatron.shell.patterns import escaped
from launcher.importers.megatron.shell.tree import Heredoc, Pipeline, ShellError, Simple, Statement

_PLAIN = re.compile(r"[^'\"`$\\\0]+")
_IN_DOUBLE = re.compile(r"[^\"`$\\\0]+")
_PARAMETER = re.compile(r"\$([A-Za-z_]\w*|\d|[@*#?$!-])")
_WORDS = re.compile(r"(?:[^\s\0]|\0[^\0]*\0)+|\s+")
_BRACES = re.compile(r"([^{}$'\"\\`]*)\{([^{}$'\"\\`]*)\}([^{}$'\"\\`]*)\Z")
_RANGE = re.compile(r"(-?\d{1,6})\.\.(-?\d{1,6})(?:\.\.(-?\d{1,6}))?\Z")
_COST = 20  # Characters that cost as much as one ``$`` does.
_COST_OF_A_COMMAND = 40  # Characters that cost as much as it does to read one command.
_SHOWN = 60  # Characters of a command in a mark.
_SUM = re.compile(r"[\d\s()*/%+-]+\Z")
_MOST_OF_A_RANGE = 1000  # Words of ``{1..N}``; scripts of trainings count nodes and layers.
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a word: ``values`` is a list where each is a word of its own, as of ``"${X[@]}"``."""

    values: tuple[str, ...]
    quoted: bool
    many: bool = False


class Expansion:
    """Puts values into words."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def fields(self, raw: str) -> list[str]:
        """The words that a word of the text becomes: none, one or several."""
        return [field for word in _braces(raw) for field in self._fields(word)]

    def _fields(self, raw: str) -> list[str]:
        found: list[str] = []
        current: str | None = None
        for piece in self._pieces(raw):
            if piece.quoted and not piece.many:
                current = (current or "") + piece.values[0]
                continue
            for number, value in enumerate(piece.values):
                if number and current is not None:
                    found.append(current)
                    current = None
                if piece.quoted:
                    current = (current or "") + value
                else:
                    self.parameters.budget.spend(len(value))
                    current = _split(value, current, found)
        return found if current is None else [*found, current]

    def text(self, raw: str) -> str:
        """The value of a word that stays one word, as behind ``NAME=``."""
        return "".join(" ".join(piece.values) for piece in self._pieces(raw))

    def pattern(self, raw: str) -> str:
        """The pattern of a word, in which quoted text stands for itself."""
        pieces = [(" ".join(piece.values), piece.quoted) for piece in self._pieces(raw)]
        return "".join(escaped(text) if quoted else text for text, quoted in pieces)

    def lines(self, text: str) -> str:
        """The value of a text in which quotes stand for themselves."""
        return "".join(" ".join(piece.values) for piece in self._double(text, ends=()))

    def heredoc(self, heredoc: Heredoc) -> str:
        """The lines of a heredoc with the values put in."""
        return heredoc.text if heredoc.quoted else self.lines(heredoc.text)

    def _pieces(self, raw: str) -> Iterator[_Piece]:
        self.parameters.budget.spend(len(raw))
        at = 0
        while at < len(raw):
            if plain := _PLAIN.match(raw, at):
                yield _Piece((plain[0],), quoted=False)
                at = plain.end()
                continue
            start, sign = at, raw[at]
            if sign == '"' or raw.startswith('$"', at):
                at = quoting.end_of_double(raw, at + (1 if sign == '"' else 2))
                inside = raw[start + (1 if sign == '"' else 2) : at - 1]
                yield from self._double(inside) if inside else [_Piece(("",), quoted=True)]
            elif sign in {"'", "\\", marks.MARK} or raw.startswith("$'", at):
                text, at = _literal(raw, at)
                yield _Piece((text,), quoted=True)
            else:
                value, at = self._dollar(raw, at, quoted=False)
                yield _piece(value, quoted=False)

    def _double(self, raw: str, ends: tuple[str, ...] = ('"',)) -> Iterator[_Piece]:
        at = 0
        while at < len(raw):
            if plain := _IN_DOUBLE.match(raw, at):
                yield _Piece((plain[0],), quoted=True)
                at = plain.end()
            elif raw[at] == "\\":
                following = raw[at + 1 : at + 2]
                kept = "\\" + following if following not in {"$", "`", "\\", "\n", *ends} else following
                yield _Piece(("" if following == "\n" else kept,), quoted=True)
                at += 2
            elif raw[at] == marks.MARK:
                text, at = _literal(raw, at)
                yield _Piece((text,), quoted=True)
            elif raw[at] == '"':
                yield _Piece(('"',), quoted=True)
                at += 1
            else:
                value, at = self._dollar(raw, at, quoted=True)
                yield _piece(value, quoted=True)

    def _dollar(self, raw: str, at: int, *, quoted: bool) -> tuple[str | tuple[str, ...], int]:
        """The value of what begins with ``$`` or a backtick, and the place behind it."""
        self.parameters.budget.spend(_COST)
        if raw[at] == "`":
            end = quoting.end_of_quote(raw, at + 1, "`")
            return self._substitution(re.sub(r"\\([$`\\])", r"\1", raw[at + 1 : end - 1])), end
        if raw.startswith("$(", at):
            end = quoting.end_of_parens(raw, at + 2)
            if raw.startswith("$((", at) and raw[end - 2] == ")":
                return self._sum(self.lines(raw[at + 3 : end - 2])), end
            return self._substitution(raw[at + 2 : end - 1]), end
        if raw.startswith("${", at):
            end = quoting.end_of_braces(raw, at + 2)
            return self.parameters.braces(raw[at + 2 : end - 1], self, quoted=quoted), end
        if found := _PARAMETER.match(raw, at):
            return self.parameters.plain(found[1], quoted=quoted), found.end()
        return "$", at + 1

    def _sum(self, text: str) -> str:
        found = self.parameters.number(text)
        return str(found.value) if found.value is not None else marks.mark(f"$(({text}))", found.names)

    def _substitution(self, inside: str) -> str:
        """The output of a command where bash itself would tell it, else a mark: nothing is run."""
        self.parameters.budget.spend(len(inside) + _COST_OF_A_COMMAND)
        shown = marks.mark("$(" + " ".join(marks.plain(inside).split())[:_SHOWN] + ")")
        try:
            body = parse(inside)
        except ShellError:
            return shown
        found = self._output(body[0]) if len(body) == 1 else None
        return shown if found is None else found.rstrip("\n")

    def _output(self, statement: Statement) -> str | None:
        """The output of ``echo ...``, ``expr ...``, ``echo ... | bc`` or ``cat <<EOF ...``; None of another command."""
        if isinstance(statement, Pipeline) and len(statement.parts) == 2 and not statement.negated:
            first, second = statement.parts
            is_sum = isinstance(second, Simple) and second.words == ("bc",)
            return self._sum_of(self._output(first)) if is_sum else None
        if not isinstance(statement, Simple) or statement.assignments or not statement.words:
            return None
        name = statement.words[0]
        if name == "cat" and statement.heredoc is not None:
            return self.heredoc(statement.heredoc)
        if name == "getopt" and self.parameters.state.positional is None:
            return "--"  # No option is given, so that the script's own values stand.
        if name not in {"echo", "expr"}:
            return None
        words = [text for raw in statement.words[1:] if isinstance(raw, str) for text in self.fields(raw)]
        text = " ".join(words[1:] if words[:1] in (["-n"], ["-e"]) else words)
        return text if name == "echo" else self._sum_of(text)

    def _sum_of(self, text: str | None) -> str | None:
        return None if text is None or not _SUM.match(marks.without(text)) else self._sum(text)


def _piece(value: str | tuple[str, ...], *, quoted: bool) -> _Piece:
    return _Piece((value,), quoted) if isinstance(value, str) else _Piece(value, quoted, many=True)


def _split(value: str, current: str | None, found: list[str]) -> str | None:
    for token in _WORDS.findall(value):
        if token.isspace():
            if current is not None:
                found.append(current)
            current = None
        else:
            current = (current or "") + token
    return current


def _literal(raw: str, at: int) -> tuple[str, int]:
    if raw[at] == "\\":
        following = raw[at + 1 : at + 2]
        return ("" if following == "\n" else following or "\\"), at + 2
    if raw[at] == "$":
        end = quoting.end_of_quote(raw, at + 2, "'")
        return _ESCAPE.sub(_escape, raw[at + 2 : end - 1]), end
    end = raw.find(raw[at], at + 1) + 1
    if not end:
        raise ShellError("No closing quotation")
    return (raw[at + 1 : end - 1] if raw[at] == "'" else raw[at:end]), end


def _escape(match: re.Match[str]) -> str:
    sign = match[1]
    if sign[0] == "x" and len(sign) > 1:
        return chr(int(sign[1:], 16) or 32)
    if sign[0].isdigit() and sign[0] not in "89":
        return chr(int(sign, 8) % 256 or 32)
    return _ESCAPES.get(sign, sign if sign in "\\'\"?" else "\\" + sign)


def _braces(raw: str) -> list[str]:
    found = _BRACES.match(raw)
    if found is None:
        return [raw]
    before, inside, after = found.groups()
    if numbers := _RANGE.match(inside):
        first, last, step = int(numbers[1]), int(numbers[2]), abs(int(numbers[3] or 1)) or 1
        count = abs(last - first) // step + 1
        if count > _MOST_OF_A_RANGE:
            return [raw]
        sign = step if last >= first else -step
        return [f"{before}{first + sign * number}{after}" for number in range(count)]
    return [f"{before}{choice}{after}" for choice in inside.split(",")] if "," in inside else [raw]
