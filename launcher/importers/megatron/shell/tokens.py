"""Words, operators, redirections and simple commands, one after the other from a place in shell text."""

from __future__ import annotations

import re
from bisect import bisect_right

from launcher.importers.megatron.shell import quoting
from launcher.importers.megatron.shell.tree import Assignment, Heredoc, ShellError, Simple, Statement

_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|&>>|&>|<<<|<<-|<<|>>|>&|<&|<>|>\||[;&|<>()\n]")
_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_REDIRECTION = re.compile(r"\d*(<<<|<<-|<<|>>|>&|<&|<>|>\||&>>|&>|<|>)(?!\()")
_NAME = r"[A-Za-z_]\w*"
_ASSIGNMENT = re.compile(rf"({_NAME})(?:\[([^\]]*)\])?(\+?)=")
_MOST_COMMANDS = 10_000
_EVALUATING = {"eval", "let", "command", "builtin"}
_ARRAYS = {"declare", "typeset", "local", "export", "readonly"}


class Tokens:
    """A place in a text, and what is read from there."""

    def __init__(self, text: str) -> None:
        """Begin at the beginning."""
        self.text, self.at, self.depth = text, 0, 0
        self.breaks = [match.start() for match in re.finditer("\n", text)]
        self.heredocs: list[Heredoc] = []
        self.seen = (-1, "")
        self.commands = 0

    def line(self) -> int:
        """The number of the line that is read."""
        return bisect_right(self.breaks, self.at - 1) + 1

    def error(self, rule: str) -> ShellError:
        """The error of a rule, with the line."""
        return ShellError(f"{rule} (line {self.line()})")

    def blank(self) -> None:
        """Go over blanks and a comment."""
        if blank := _BLANK.match(self.text, self.at):
            self.at = blank.end()
        if self.text.startswith("#", self.at):
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end

    def operator(self) -> str:
        """The operator that stands here, or nothing."""
        self.blank()
        found = _OPERATOR.match(self.text, self.at)
        return found[0] if found else ""

    def word_here(self) -> str:
        """The word that stands here, or nothing; the place stays."""
        self.blank()
        if self.seen[0] != self.at:
            try:
                self.seen = (self.at, self.text[self.at : quoting.end_of_word(self.text, self.at)])
            except ShellError as error:
                raise self.error(str(error)) from None
        return self.seen[1]

    def word(self) -> str:
        """The next word."""
        found = self.word_here()
        self.at += len(found)
        return found

    def take(self, operator: str) -> bool:
        """Go over this operator, if it is here."""
        found = self.operator() == operator
        if found:
            self.at += len(operator)
            if operator == "\n":
                self.bodies_of_heredocs()
        return found

    def lines(self) -> None:
        """Go over ends of lines."""
        while self.take("\n"):
            pass

    def need(self, word: str) -> None:
        """Go over a reserved word, which must be here."""
        self.lines()
        if self.word_here() != word:
            raise self.error(f"{word!r} is missing")
        self.at += len(word)

    def arithmetic(self) -> str | None:
        """The inside of ``(( ... ))``, or nothing where it is two parentheses."""
        try:
            end = quoting.end_of_parens(self.text, self.at + 2)
        except ShellError as error:
            raise self.error(str(error)) from None
        if not self.text.startswith(")", end):
            return None
        inside = self.text[self.at + 2 : end - 1]
        self.at = end + 1
        return inside

    def operand(self, words: list[str]) -> str:
        """The next operand of a condition."""
        if not words or words[-1] != "=~":
            return self.word()
        self.blank()
        start = self.at
        while self.at < len(self.text) and not self.text[self.at].isspace():
            step = quoting.end_of_word(self.text, self.at)
            self.at = step if step > self.at else self.at + 1
        return self.text[start : self.at]

    def redirected(self, statement: Statement) -> Statement:
        """Go over the redirections behind a statement."""
        while self.redirection():
            pass
        return statement

    def simple(self, line: int) -> Simple:
        """A simple command that begins on a line."""
        assignments: list[Assignment] = []
        words: list[str | Assignment] = []
        heredoc: Heredoc | None = None
        self.commands += 1
        if self.commands > _MOST_COMMANDS:
            raise self.error(f"it holds more than {_MOST_COMMANDS:,} commands")
        while True:
            found = self.redirection()
            if found:
                heredoc = found if isinstance(found, Heredoc) else heredoc
            elif (not words or words[0] in _ARRAYS) and (assignment := self.assignment(arrays=bool(words))):
                (words if words else assignments).append(assignment)
            elif word := self.word():
                words.append(word)
            else:
                break
        if (words or assignments) and self.operator() == "(" and not (words and words[0] in _EVALUATING):
            raise self.error("'(' among the words of a command stands in quotes")
        return Simple(line, tuple(assignments), tuple(words), heredoc)

    def assignment(self, *, arrays: bool) -> Assignment | None:
        """The assignment that stands here; among the words of a command only that of an array."""
        head = _ASSIGNMENT.match(self.text, self.at)
        if head is None or (arrays and not self.text.startswith("(", head.end())):
            return None
        if self.text.startswith("(", head.end()) and head[2] is None:
            self.at = head.end() + 1
            return Assignment(head[1], self.array(), append=bool(head[3]))
        word = self.word_here()
        self.at += len(word)
        return Assignment(head[1], word[head.end() - head.start() :], head[2], append=bool(head[3]))

    def array(self) -> tuple[str, ...]:
        """The words of an array in parentheses."""
        words: list[str] = []
        while True:
            self.lines()
            if self.take(")"):
                return tuple(words)
            word = self.word()
            if not word:
                raise self.error("')' of an array is missing")
            words.append(word)

    def redirection(self) -> Heredoc | bool:
        """Go over a redirection, if one is here; its heredoc is filled at the end of the line."""
        self.blank()
        found = _REDIRECTION.match(self.text, self.at)
        if found is None:
            return False
        self.at = found.end()
        word = self.word()
        if found[1] not in {"<<", "<<-"}:
            return True
        delimiter = re.sub(r"['\"\\]", "", word)
        self.heredocs.append(Heredoc(delimiter, quoted=delimiter != word))
        return self.heredocs[-1]

    def bodies_of_heredocs(self) -> None:
        """Read the lines of the heredocs that the line before has opened."""
        for heredoc in self.heredocs:
            start = self.at
            end = re.compile(rf"^[ \t]*{re.escape(heredoc.delimiter)}[ \t\r]*$", re.MULTILINE).search(self.text, start)
            self.at = len(self.text) if end is None else min(end.end() + 1, len(self.text))
            heredoc.text = self.text[start : end.start() if end else None]
        self.heredocs = []
