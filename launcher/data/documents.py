"""From ``data.*`` to rows and documents, the same for planning, which samples some, and for training.

Local files are read here (``launcher.data.formats``), whatever the source; only a name on the Hugging Face Hub needs
the package ``datasets``. A plain text file is one document, and so is the text in ``data.column`` of each row.
"""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from launcher.data import formats, hub
from launcher.data.chat import PAIRS, is_conversation
from launcher.data.files import contents, files_of, is_on_hub
from launcher.data.formats import Row
from launcher.data.opening import opened
from launcher.data.unusable import SKIPPING, BadRows, Unusable, importing, is_text
from launcher.spec import DataSpec

SIZE = 1 << 18
"""Bytes read at once; pieces of 16 KiB are encoded at two thirds of the speed, larger ones no faster."""

_LONGEST = 64 * SIZE  # Characters without a space after which a piece is cut anyway.


class Unfinished(str):
    """A piece of a document that continues in the next string, so that a long document is never held whole."""

    __slots__ = ()


def documents(data: DataSpec, bad: BadRows | None = None) -> Iterator[str]:
    """The texts of ``data=text`` and ``data=huggingface``, in order; rows without text are skipped.

    A long plain text file comes in pieces, all but the last :class:`Unfinished`. ``bad`` skips rows that cannot be
    used; None follows ``data.on_bad_row``.
    """
    files, bad = files_of(data), bad or BadRows.of(data)
    if files and formats.kind_of_all(files) == "text":
        first, last = hub.slice_of(data.split, len(files)) or (0, len(files))
        for path in files[first:last][: data.max_samples]:
            if not bad.skips or _is_whole(path, bad):
                yield from pieces(path)
    else:
        for number, row in enumerate(_rows(data, files, bad, only=[data.column]), 1):
            try:
                content = text_of(row, data, f"row {number}")
            except Unusable as error:
                bad.refuse(error)
            else:
                if content:
                    yield content
    bad.require_few()


def _is_whole(path: Path, bad: BadRows) -> bool:
    """True if a file is text to its end; it is read first, so that no part of a bad file is passed on."""
    bad.at(path, "document", 1)
    try:
        for _ in pieces(path):
            pass
    except Unusable as error:
        bad.refuse(error)
        return False
    return True


def table_rows(data: DataSpec, bad: BadRows | None = None) -> Iterator[Row]:
    """The rows of all files in order, or of a Hugging Face Hub data set; ``bad`` as for :func:`documents`."""
    bad = bad or BadRows.of(data)
    yield from _rows(data, files_of(data), bad)
    bad.require_few()


def fingerprint(data: DataSpec) -> list[object]:
    """The identity of the content: the column, with the files' hashes or the commit of the Hub's data set."""
    if not is_on_hub(data):
        return [data.column, *contents(files_of(data))]
    if hub.commit("dataset", data.path or "", data.revision) is None:
        _hub_data_set(data)
    at = hub.commit("dataset", data.path or "", data.revision)
    return [data.column, data.path, data.config, data.split, at or str(_hub_data_set(data)._fingerprint)]


def _rows(data: DataSpec, files: Sequence[Path], bad: BadRows, only: Sequence[str] | None = None) -> Iterator[Row]:
    found = _all_rows(data, files, bad, only)
    if files and hub.split_name(data.split) != data.split:  # From the Hub, ``datasets`` returns only the slice.
        total = sum(1 for _ in _all_rows(data, files, BadRows(skips=True), only))
        found = islice(found, *(hub.slice_of(data.split, total) or ()))
    yield from islice(found, data.max_samples)


def _all_rows(data: DataSpec, files: Sequence[Path], bad: BadRows, only: Sequence[str] | None) -> Iterator[Row]:
    if not files:
        for number, row in enumerate(_hub_data_set(data), 1):
            bad.at(data.path, "row", number)
            yield row
        return
    formats.kind_of_all(files)
    for path in files:
        yield from formats.rows(path, only=only, bad=bad)


def text_of(row: Row, data: DataSpec, which: str) -> str:
    """The text of a row in ``data.column``, empty if null; ``which`` names the row in messages."""
    if data.column not in row:
        raise _missing(row, data, which)
    value = row[data.column]
    if value is None:
        return ""
    if isinstance(value, str):
        if not is_text(value):
            rule = f"{which} holds bytes or escapes there that are not UTF-8 (half of a surrogate pair)"
            raise Unusable("data.column", data.column, rule, [SKIPPING])
        return value
    what = {list: "a list", dict: "an object", bool: "a boolean"}.get(type(value), "a number")
    rule = f"{which} holds {what} there, not text; as text it would be {_printed(value)}"
    ways = _text_columns(row)
    if is_conversation(value):
        rule = f"{which} holds messages there, and data.source={data.source} reads text"
        ways = [_as_chat(data, data.column), *ways]
    raise Unusable("data.column", data.column, rule, ways)


def _missing(row: Mapping[str, object], data: DataSpec, which: str) -> Unusable:
    rule = f"{which} has no such column; it has {', '.join(map(str, row))}"
    conversation = next((name for name, value in row.items() if is_conversation(value)), None)
    pair = next((pair for pair in PAIRS if row.keys() >= set(pair)), None)
    if conversation is None and pair is None:
        return Unusable("data.column", data.column, rule, _text_columns(row))
    rule += " (conversations, which data=chat trains on)"
    return Unusable("data.column", data.column, rule, [_as_chat(data, conversation), *_text_columns(row)])


def _as_chat(data: DataSpec, column: str | None) -> str:
    named = "" if column in (None, "messages") else f" data.column={column}"
    return f"data=chat data.path={data.path}{named}"


def _text_columns(row: Mapping[str, object]) -> list[str]:
    return [f"data.column={name}" for name, value in row.items() if isinstance(value, str)][:3]


def _printed(value: object) -> str:
    shown = str(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def pieces(path: Path) -> Iterator[str]:
    """The text of a file in pieces, cut where a tokenizer would cut; all but the last are :class:`Unfinished`.

    Common tokenizers split at lines first, so a line feed between two other characters always ends a token (the
    patterns of GPT-2 and Llama 3; SentencePiece marks the start of a word, and each piece starts with a new mark).
    Without a line feed a piece ends before a space, and without spaces after 16 MiB.
    """
    decoder, rest = codecs.getincrementaldecoder("utf-8")(), ""
    with opened(path) as file:
        while content := file.read(SIZE):
            text = decoder.decode(content)
            if "\0" in text:
                ways = [f"data=tokens data.path={path}"]
                raise Unusable("data.path", str(path), "it contains zero bytes, so it is not text", ways)
            rest += text
            if len(rest) > SIZE // 2 and (place := _end(rest)):
                yield Unfinished(rest[:place])
                rest = rest[place:]
        rest += decoder.decode(b"", final=True)
    yield rest


def _end(text: str) -> int:
    place = len(text) - 1
    while (place := text.rfind("\n", 1, place)) > 0:
        if not text[place - 1].isspace() and not text[place + 1].isspace():
            return place + 1
    space = text.rfind(" ")
    if space > 0:
        return space
    return len(text) - 1 if len(text) > _LONGEST else 0


_CONNECT_S = 5.0


def _hub_data_set(data: DataSpec) -> Any:
    """The Hugging Face Hub data set that ``data.path`` names, with the rows of ``data.split``, from ``datasets``.

    The Hub is tried briefly first. If it does not answer, ``datasets`` would retry for minutes; it is told to work
    offline instead, and then knows at once whether its cache has the data set.
    """
    with importing("data.source", data.source, "needs datasets"):
        import datasets
    datasets.disable_progress_bars()
    answers = _answers(datasets.config.HF_ENDPOINT)
    if not answers:
        from huggingface_hub import constants

        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        return datasets.load_dataset(data.path, data.config, split=data.split, revision=data.revision)
    except Exception as error:
        said = f"says {type(error).__name__}: {error}" if answers else "does not answer, and its cache has no such data"
        rule = f"no file or folder on this machine; the Hugging Face Hub {said}"
        raise Unusable("data.path", data.path, rule, ["data=synthetic data.path=null"]) from error


def _answers(endpoint: str) -> bool:
    import socket  # Late, like the next two: only Hub data needs them, and planning is quick.
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    if getproxies():
        return True
    place = urlsplit(endpoint)
    try:
        socket.create_connection((place.hostname or "", place.port or 443), timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True
