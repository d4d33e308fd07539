"""Chat templates: Jinja programs that render a conversation as one text, and which parts of it are trained.

The template is ``data.template``, or else the tokenizer's own, or else ``plain``. It is rendered as in ``transformers``
(``utils/chat_template_utils.py``): in Jinja's immutable sandbox, with the same filters and functions and only JSON
values, since a template is a program written by the tokenizer's author.

The assistant's text is found in one of two ways. ``{% generation %}`` blocks of the template enclose it. Without them,
a turn starts where the conversation before it, with the generation prompt, ends, and ends where the conversation
including it ends; that needs a template that renders the start of a conversation the same whatever follows.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base.files import JsonObject, load_json, read_text
from launcher.base.frozen import dataclass
from launcher.data import hub
from launcher.data.chat import Conversation
from launcher.data.unusable import SKIPPING, Unusable, importing, is_text
from launcher.spec.training import DataSpec

if TYPE_CHECKING:
    import jinja2

PLAIN = "plain"  # The shipped template for tokenizers that have none.
GENERAL = ("chatml", "plain")  # Shipped templates that belong to no model: ways out.
ALPACA = "alpaca"
"""The shipped template of Alpaca's prompt; ``alpaca+NAME`` puts that prompt inside another template, and ``alpaca+``
inside the tokenizer's own."""

_PAIRED = ("Below is an instruction that describes a task, paired with an input that provides further context. "
           "Write a response that appropriately completes the request.\n\n")  # fmt: skip
_ALONE = ("Below is an instruction that describes a task. "
          "Write a response that appropriately completes the request.\n\n")  # fmt: skip
_SHIPPED = Path(__file__).parent / "templates"
_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Unicode noncharacters, which text never holds, around what ``{% generation %}`` encloses; removed afterwards."""

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")

type Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation, and the parts of it that are trained (None: all of it)."""

    text: str
    trained: Sequence[Span] | None


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template."""

    name: str  # As messages call it.
    asked: str | None  # The value of ``data.template``.
    text: str  # The Jinja program.
    tokens: Mapping[str, str]  # The special tokens that it may use, such as ``eos_token``.
    values: Mapping[str, Any]  # Other variables that it may use, such as ``enable_thinking``.
    alpaca: bool = False  # True if user messages are wrapped in Alpaca's prompt first.

    def written(self, conversation: Conversation, train_on: str) -> Rendered:
        """The rendered conversation, with the parts that ``train_on`` trains; Unusable if those cannot be found."""
        self.require()
        whole = self._render(conversation, len(conversation.messages))
        if not is_text(whole):
            rule = f"row {conversation.row} holds bytes or escapes that are not UTF-8 (half of a surrogate pair)"
            raise Unusable("data.path", None, rule, [SKIPPING])
        if _GENERATION.search(self.text):
            text, spans = _enclosed(whole, conversation)
            if train_on == "last":
                before = self._render(conversation, conversation.answers[-1]) if conversation.answers[-1] else ""
                spans = spans[before.count(_BEGIN) :]
            return Rendered(text, None if train_on == "all" else spans)
        if train_on == "all":
            return Rendered(whole, None)
        places = conversation.answers[-1:] if train_on == "last" else conversation.answers
        return Rendered(whole, [self._turn(conversation, place, whole) for place in places])

    def _turn(self, conversation: Conversation, place: int, whole: str) -> Span:
        before = self._render(conversation, place, prompt=True)
        upto = whole if place == len(conversation.messages) - 1 else self._render(conversation, place + 1)
        if not (whole.startswith(upto) and upto.startswith(before)):
            rule = (
                f"row {conversation.row}: {self.name} renders the start of a conversation differently when more "
                f"follows, so the start and end of turn {place + 1} are unknown"
            )
            raise Unusable("data.template", self.asked, rule, [*ways_out(), "data.train_on=last"])
        return len(before), len(upto)

    def require(self) -> None:
        """Raise Unusable unless it compiles as a template."""
        try:
            _compiled(self.text)
        except Unusable:
            raise
        except Exception as error:
            rule = f"{self.name} is not a Jinja template: {type(error).__name__}: {error}"
            raise Unusable("data.template", self.asked, rule, ways_out()) from error

    def _render(self, conversation: Conversation, count: int, *, prompt: bool = False) -> str:
        try:
            rendered: str = _compiled(self.text).render(
                messages=plain(
                    in_alpacas_words(conversation.messages[:count]) if self.alpaca else conversation.messages[:count]
                ),
                tools=plain(conversation.tools),
                documents=None,
                add_generation_prompt=prompt,
                **{**self.tokens, **self.values},
            )
        except MemoryError:
            why = "exceeds its memory limit: it repeats a text too often"
            rule = f"row {conversation.row}: {self.name} {why}"
            raise Unusable("data.template", self.asked, rule, ways_out()) from None
        except Exception as error:  # A template is a program: any error of it ends here.
            part = "" if count == len(conversation.messages) else f" (its first {count} messages)"
            rule = f"row {conversation.row}{part}: {self.name} fails: {type(error).__name__}: {error}"
            raise Unusable("data.template", self.asked, rule, ways_out()) from error
        return rendered


def ways_out() -> list[str]:
    """Templates to use instead."""
    return [f"data.template={name}" for name in GENERAL]


def in_alpacas_words(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Messages with each user message in Alpaca's prompt (github.com/tatsu-lab/stanford_alpaca, train.py)."""
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), None)
    begins = first == 0  # A system message replaces Alpaca's first sentences.
    found: list[Mapping[str, Any]] = []
    for place, message in enumerate(messages):
        if message["role"] == "user":
            beside = message.get("input")
            asked = message.get("instruction", message["content"])
            words = (
                f"### Instruction:\n{asked}\n\n" + (f"### Input:\n{beside}\n\n" if beside else "") + "### Response:\n"
            )
            opening = (_PAIRED if beside else _ALONE) if begins and place == first else ""
            found.append({**message, "content": opening + words})
        else:
            found.append(message)
    return found


def _enclosed(whole: str, conversation: Conversation) -> tuple[str, list[Span]]:
    pieces = re.split(f"([{_BEGIN}{_END}])", whole)
    if pieces[1::2] != [_BEGIN, _END] * (len(pieces) // 4):
        rule = "text contains the noncharacters U+FDD0 or U+FDD1, or the template's generation blocks are nested"
        raise Unusable("data.path", None, f"row {conversation.row}: its {rule}: remove them")
    texts, spans, length = pieces[::2], [], 0
    for number, text in enumerate(texts):
        if number % 2:
            spans.append((length, length + len(text)))
        length += len(text)
    return "".join(texts), spans


def shipped() -> list[str]:
    """The names of the templates shipped with this program."""
    return sorted(path.stem for path in _SHIPPED.glob("*.jinja"))


def is_shipped(found: Template) -> bool:
    """True for a template shipped with this program."""
    name = (found.asked or PLAIN).removeprefix(f"{ALPACA}+") or PLAIN
    return name in shipped() and found.text == _text(name)


def template(data: DataSpec) -> Template:
    """The chat template of a run."""
    folder = None if data.tokenizer == "bytes" else _folder(data)
    named = (data.template or "").removeprefix(f"{ALPACA}+") or None
    given = {role: text for role, text in data.roles if role in _SPECIAL}
    tokens = {} if folder is None else _special_tokens(folder) | given
    own = None if folder is None or named is not None else _own(folder)
    name = "the text of data.template" if "{%" in (data.template or "") else f"the template {data.template or PLAIN}"
    if own is not None:
        name, text = f"the chat template of data.tokenizer={data.tokenizer}", own
    else:
        text = _text(named or PLAIN)
    values = dict(data.template_values or {})
    return Template(name, data.template, text, tokens, values, alpaca=(data.template or "").startswith(ALPACA))


def fingerprint(data: DataSpec) -> list[object]:
    """The inputs of a conversation's rendering: template source, special tokens, Alpaca's prompt, other variables."""
    found = template(data)
    return [
        found.text,
        dict(found.tokens),
        *([ALPACA] if found.alpaca else []),
        *([found.values] if found.values else []),
    ]


def lacks_own(data: DataSpec) -> bool:
    """True if the run's tokenizer has no template and none is set, so ``plain`` is used."""
    if data.template not in (None, f"{ALPACA}+"):
        return False
    return data.tokenizer == "bytes" or _own(_folder(data)) is None


def _folder(data: DataSpec) -> Path:
    return hub.tokenizer_folder(data.tokenizer) or Path(data.tokenizer)


def _text(name: str) -> str:
    if "{%" in name:
        return name
    path = _SHIPPED / f"{name}.jinja" if name in shipped() else Path(name)
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        rule = f"it is neither a shipped template nor a readable file: {why}"
        raise Unusable("data.template", name, rule, ways_out()) from None


def _own(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from None
    found = _json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _special_tokens(folder: Path) -> dict[str, str]:
    said = _json(folder / "special_tokens_map.json") | _json(folder / "tokenizer_config.json")
    found = {name: said[name] for name in _SPECIAL if said.get(name)}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in found.items()}
    return {name: str(text) for name, text in texts.items() if text is not None}


def _json(path: Path) -> JsonObject:
    try:
        found = load_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    return found if isinstance(found, dict) else {}


def _unreadable(path: Path, error: Exception) -> Unusable:
    why = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
    return Unusable("data.tokenizer", str(path), f"it cannot be read: {why}", ["data.tokenizer=bytes"])


@lru_cache(maxsize=8)
def _compiled(text: str) -> "jinja2.Template":
    with importing("data.source", "chat", "it needs the package jinja2"):
        import jinja2
        import jinja2.ext
        import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        """``{% generation %} ... {% endgeneration %}``: puts its text between two marks."""

        tags = {"generation"}  # noqa: RUF012  # Jinja's own declaration.

        def parse(self, parser: Any) -> "list[jinja2.nodes.Node]":
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            begin, end = (jinja2.nodes.Output([jinja2.nodes.TemplateData(mark)]) for mark in (_BEGIN, _END))
            return [begin.set_lineno(line), *body, end.set_lineno(line)]

    class Namespace(jinja2.utils.Namespace):
        """A namespace without underscored names, an escape from the sandbox that ``transformers`` has closed, too."""

        def __init__(*arguments: Any, **named: Any) -> None:
            self, *rest = arguments
            values = dict(*rest, **named)
            for name in values:
                checked(name)
            jinja2.utils.Namespace.__init__(self, values)

        def __setitem__(self, name: str, value: Any) -> None:
            jinja2.utils.Namespace.__setitem__(self, checked(name), value)

    def checked(name: str) -> str:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a template cannot set {name!r} on a namespace")
        return name

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "namespace": Namespace,
    }
    return made.from_string(text)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def plain(value: object) -> Any:
    """The value as plain JSON types: methods of anything else could escape the sandbox."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return str(value)
