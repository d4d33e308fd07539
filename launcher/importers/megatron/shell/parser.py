"""Shell text as statements: words, operators and redirections one after the other, and what they make together."""

import re
from bisect import bisect_right
from collections.abc import Callable

from launcher.importers.megatron.shell import quoting, tree
from launcher.importers.megatron.shell.tree import DEEPEST, Assignment, Body, Heredoc, ShellError, Simple, Statement

_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|&>>|&>|<<<|<<-|<<|>>|>&|<&|<>|>\||[;&|<>()\n]")
_BLANK = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_REDIRECTION = re.compile(r"\d*(<<<|<<-|<<|>>|>&|<&|<>|>\||&>>|&>|<|>)(?!\()")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=")
_MOST_COMMANDS = 10_000  # Commands of one script; each costs the reader some microseconds.
_EVALUATING = {"eval", "let", "command", "builtin"}
_ARRAYS = {"declare", "typeset", "local", "export", "readonly"}
_FUNCTION = re.compile(r"([\w.:-]+)[ \t]*\([ \t]*\)")
_STARTS = {"(", "<", ">", ">>", "<<", "<<-", "<<<", ">&", "<&", "<>", ">|", "&>", "&>>"}
_ENDS = {"then", "elif", "else", "fi", "do", "done", "esac", "}"}


def parse(text: str) -> Body:
    """Read a script; raises ShellError, whose sentence names the line, where it is none."""
    reader = _Parser(text)
    body = reader.body()
    if reader.at < len(text):
        raise reader.error(f"{reader.word_here() or text[reader.at]!r} has no beginning")
    return body


class _Tokens:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.breaks = [match.start() for match in re.finditer("\n", text)]
        self.heredocs: list[Heredoc] = []
        self.seen = (-1, "")
        self.commands = 0

    def line(self) -> int:
        return bisect_right(self.breaks, self.at - 1) + 1

    def error(self, rule: str) -> ShellError:
        return ShellError(f"{rule} (line {self.line()})")

    def blank(self) -> None:
        """Go over blanks and a comment."""
        if blank := _BLANK.match(self.text, self.at):
            self.at = blank.end()
        if self.text.startswith("#", self.at):
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end

    def operator(self) -> str:
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
        found = self.word_here()
        self.at += len(found)
        return found

    def take(self, operator: str) -> bool:
        found = self.operator() == operator
        if found:
            self.at += len(operator)
            if operator == "\n":
                self.bodies_of_heredocs()
        return found

    def lines(self) -> None:
        while self.take("\n"):
            pass

    def need(self, word: str) -> None:
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
        while self.redirection():
            pass
        return statement

    def simple(self, line: int) -> Simple:
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
        word = self.word()
        return Assignment(head[1], word[head.end() - head.start() :], head[2], append=bool(head[3]))

    def array(self) -> tuple[str, ...]:
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


class _Parser(_Tokens):
    def body(self) -> Body:
        """Statements up to a reserved word or a parenthesis that none of them has opened."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise self.error(f"statements are nested deeper than {DEEPEST}")
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
        known: dict[str, Callable[[int, str], Statement]] = {
            "if": self.if_, "case": self.case, "for": self.for_, "select": self.for_, "while": self.while_,
            "until": self.while_, "{": self.braces, "[[": self.test, "function": self.function,
        }  # fmt: skip
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
        here = "elif"
        while here == "elif":
            condition = self.body()
            self.need("then")
            branches.append((line, condition, self.body()))
            self.lines()
            line, here = self.line(), self.word()
        otherwise = self.body() if here == "else" else ()
        if (self.word() if here == "else" else here) != "fi":
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
        words = None
        if self.word_here() == "in":
            self.at += 2
            words = tuple(iter(self.word, ""))
        self.take(";")
        return tree.For(line, name, words, self.loop())

    def braces(self, _line: int, _word: str) -> tree.Group:
        body = self.body()
        self.need("}")
        return tree.Group(body, apart=False)

    def loop(self) -> Body:
        """``do ... done``, or the braces that bash takes as well."""
        self.lines()
        opening, closing = ("{", "}") if self.word_here() == "{" else ("do", "done")
        self.need(opening)
        body = self.body()
        self.need(closing)
        return body

    def while_(self, line: int, word: str) -> tree.While:
        return tree.While(line, self.body(), self.loop(), until=word == "until")

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
