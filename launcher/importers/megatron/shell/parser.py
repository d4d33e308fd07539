"""Shell text as statements."""

from __future__ import annotations

import re
from collections.abc import Callable

from launcher.importers.megatron.shell import tree
from launcher.importers.megatron.shell.tokens import Tokens
from launcher.importers.megatron.shell.tree import Body, Statement

_DEEPEST = 40
_FUNCTION = re.compile(r"([\w.:-]+)[ \t]*\([ \t]*\)")
_STARTS = {"(", "<", ">", ">>", "<<", "<<-", "<<<", ">&", "<&", "<>", ">|", "&>", "&>>"}
_ENDS = {"then", "elif", "else", "fi", "do", "done", "esac", "}"}


def parse(text: str) -> Body:
    """Read a script.

    Raises:
        ShellError: It is none; the sentence names the line.
    """
    reader = _Parser(text)
    body = reader.body()
    if reader.at < len(text):
        raise reader.error(f"{reader.word_here() or text[reader.at]!r} has no beginning")
    return body


class _Parser(Tokens):
    """Reads statements, each with those inside it."""

    def body(self) -> Body:
        """Statements up to a reserved word or a parenthesis that none of them has opened."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.error(f"statements are nested deeper than {_DEEPEST}")
        found: list[Statement] = []
        while True:
            while self.take("\n") or self.take(";") or self.take("&"):
                pass
            here = self.word_here()
            if here in _ENDS or (not here and self.operator() not in _STARTS):
                self.depth -= 1
                return tuple(found)
            found.append(self.chain())

    def chain(self) -> Statement:
        line = self.line()
        first = self.pipeline()
        rest: list[tuple[str, Statement]] = []
        while (operator := self.operator()) in {"&&", "||"}:
            self.at += 2
            self.lines()
            rest.append((operator, self.pipeline()))
        return tree.Chain(line, first, tuple(rest)) if rest else first

    def pipeline(self) -> Statement:
        negated = False
        while self.word_here() in {"!", "time"}:
            negated ^= self.word() == "!"
        parts = [self.command()]
        while (operator := self.operator()) in {"|", "|&"}:
            self.at += len(operator)
            self.lines()
            parts.append(self.command())
        return tree.Pipeline(tuple(parts), negated) if negated or len(parts) > 1 else parts[0]

    def command(self) -> Statement:
        self.blank()
        line = self.line()
        if self.text.startswith("((", self.at) and (found := self.arithmetic()) is not None:
            return self.redirected(tree.Arithmetic(line, found))
        if self.take("("):
            body = self.body()
            if not self.take(")"):
                raise self.error("')' is missing")
            return self.redirected(tree.Group(body, apart=True))
        known: dict[str, Callable[[int, str], Statement]] = {"if": self.if_, "case": self.case, "for": self.for_}
        known |= {"select": self.for_, "while": self.while_}
        known |= {"until": self.while_, "{": self.group, "[[": self.test, "function": self.function}
        here = self.word_here()
        if here in known:
            self.at += len(here)
            return self.redirected(known[here](line, here))
        if (named := _FUNCTION.match(self.text, self.at)) and named[1] not in _ENDS:
            self.at = named.end()
            self.lines()
            return tree.Function(named[1], self.command())
        return self.simple(line)

    def if_(self, line: int, _word: str) -> tree.If:
        branches: list[tuple[int, Body, Body]] = []
        otherwise: Body = ()
        while True:
            condition = self.body()
            self.need("then")
            branches.append((line, condition, self.body()))
            self.lines()
            line, here = self.line(), self.word()
            if here == "elif":
                continue
            if here == "else":
                otherwise = self.body()
                here = self.word()
            if here != "fi":
                raise self.error("'fi' is missing")
            return tree.If(tuple(branches), otherwise)

    def case(self, line: int, _word: str) -> tree.Case:
        word = self.word()
        self.need("in")
        items: list[tuple[tuple[str, ...], Body]] = []
        while True:
            self.lines()
            if self.word_here() == "esac":
                self.at += 4
                return tree.Case(line, word, tuple(items))
            self.take("(")
            patterns = [self.word()]
            while self.take("|"):
                patterns.append(self.word())
            if not self.take(")"):
                raise self.error("a pattern of case ends with ')'")
            items.append((tuple(patterns), self.body()))
            if not (self.take(";;") or self.take(";&") or self.take(";;&")):
                self.lines()
                if self.word_here() != "esac":
                    raise self.error("';;' or 'esac' is missing")

    def for_(self, line: int, _word: str) -> Statement:
        self.blank()
        if self.text.startswith("((", self.at):
            parts = (self.arithmetic() or "").split(";")
            self.take(";")
            start, condition, step = [*parts, "", "", ""][:3]
            return tree.Count(line, (start, condition, step), self.loop())
        name = self.word()
        self.lines()
        words: tuple[str, ...] | None = None
        if self.word_here() == "in":
            self.at += 2
            found = []
            while word := self.word():
                found.append(word)
            words = tuple(found)
        self.take(";")
        return tree.For(line, name, words, self.loop())

    def loop(self) -> Body:
        """``do ... done``, or the braces that bash takes as well."""
        self.lines()
        opening, closing = ("{", "}") if self.word_here() == "{" else ("do", "done")
        self.need(opening)
        body = self.body()
        self.need(closing)
        return body

    def while_(self, line: int, word: str) -> tree.While:
        condition = self.body()
        return tree.While(line, condition, self.loop(), until=word == "until")

    def group(self, _line: int, _word: str) -> tree.Group:
        body = self.body()
        self.need("}")
        return tree.Group(body, apart=False)

    def function(self, _line: int, _word: str) -> tree.Function:
        name = self.word()
        if self.take("("):
            self.take(")")
        self.lines()
        return tree.Function(name, self.command())

    def test(self, line: int, _word: str) -> tree.Test:
        """The words of ``[[ ... ]]``; a regular expression is one word, with its parentheses and bars."""
        words: list[str] = []
        while True:
            self.lines()
            operator = self.operator()
            word = operator if operator and not (words and words[-1] == "=~") else self.operand(words)
            self.at += len(operator) if word is operator else 0
            if word == "]]":
                return tree.Test(line, tuple(words))
            if not word:
                raise self.error("']]' is missing")
            words.append(word)
