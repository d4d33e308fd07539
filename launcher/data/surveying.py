"""Survey data: rows, columns, tokens, and faults in them, from a sample.

The number of tokens is a ratio estimate: tokens of a sample over the bytes on disk that it represents, times all bytes.
Its error is two standard errors of that ratio, from how the blocks of the sample differ (Cochran, Sampling Techniques,
3rd ed., 1977, section 6.4); where the start of a file represents all of it, nothing tells how the rest differs.
"""

import array
import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.base import files as regular
from launcher.base.frozen import dataclass
from launcher.data import documents, formats, hub, sampling
from launcher.data.files import check_token_type
from launcher.data.opening import errors_named
from launcher.data.sampling import Block, Sample
from launcher.data.survey import Survey
from launcher.data.tokenizer import ByteTokenizer, count_tokens, quick_tokenizer
from launcher.data.unusable import BadRows, PackageMissing, Unusable
from launcher.spec import DataSpec

_TOKENISED = 1 << 19  # Characters that are tokenised; a tokenizer handles some millions per second.
_PIECE = 1 << 14
_IDS = 1 << 14
_TYPES = {"uint16": ("H", 2), "uint32": ("I", 4)}
_NAMED = {"jsonl": "JSON lines", "json": "JSON", "csv": "CSV", "parquet": "Parquet", "arrow": "Arrow"}


def survey(files: Sequence[Path], data: DataSpec, task: str = "") -> Survey:
    """Survey the files of some data, as ``task`` reads their rows."""
    if data.source == "tokens":
        return _of_ids(files, data.token_dtype)
    if data.is_chat or data.source == "rows":
        return _of_conversations(files, data, task)
    bad = BadRows.of(data)
    if files and formats.kind_of_all(files) == "text":
        first, last = hub.slice_of(data.split, len(files)) or (0, len(files))
        files = files[first:last][: data.max_samples]
    found = _first(sampling.sample(files, bad, only=[data.column]), data)
    columns = () if found.kind == "text" else formats.columns(files[0], BadRows.of(data))
    names = (f"row {number}" if found.whole else "a row" for number in itertools.count(1))
    texts = [_texts(block, data, names, bad) for block in found.blocks]
    bad.require_few()
    whole = found.whole or found.kind != "text"
    read = [text for block, each in zip(found.blocks, texts, strict=True) if whole or block.documents for text in each]
    full = [text for text in read if text.strip()]
    survey = replace(
        _of_sample(found, files, columns, bad),
        seen=len(read),
        empty=len(read) - len(full),
        duplicates=len(full) - len(set(map(hash, full))),
    )
    return _with_tokens(survey, found, texts, data)


def _first(found: Sample, data: DataSpec) -> Sample:
    """The sample restricted to the slice of ``data.split`` and its first ``data.max_samples`` rows.

    If the data was not read whole, these rows are assumed to be like the rest.
    """
    most = data.max_samples
    if found.kind == "text" or (most is None and hub.split_name(data.split) == data.split):
        return found
    read = sum(block.documents for block in found.blocks)
    rows = found.rows if found.rows is not None else round(found.weight * read / max(1, _weight(found.blocks)))
    first, last = hub.slice_of(data.split, rows) or (0, rows)
    last = last if most is None else min(last, first + most)
    most = last - first
    if rows <= most:
        return found
    if not found.whole:
        return replace(found, weight=found.weight * most / rows, rows=most)
    kept, place = [], 0
    for block in found.blocks:
        start, stop = max(0, first - place), max(0, min(block.documents, last - place))
        place, share = place + block.documents, max(0, stop - start)
        weight = block.weight * share / max(1, block.documents)
        places = block.places[start:stop]
        rest = replace(block, weight=weight, rows=block.rows[start:stop], places=places, documents=share)
        kept += [rest] if share else []
    return replace(found, weight=_weight(kept), blocks=kept, rows=most)


def _weight(blocks: Sequence[Block]) -> float:
    return sum(block.weight for block in blocks)


def _of_conversations(files: Sequence[Path], data: DataSpec, task: str) -> Survey:
    bad = BadRows.of(data)
    found = _first(sampling.sample(files, bad), data)
    if found.kind == "text":
        ways = ["data.path=path/to/*.jsonl"] if data.source == "rows" else [f"data=text data.path={data.path}"]
        raise Unusable("data.path", data.path, "it is plain text without rows", ways)
    rows = [str(row) for block in found.blocks for row in block.rows]
    columns = [name.partition(".")[0] for name in data.columns or ()] or formats.columns(files[0], BadRows.of(data))
    survey = _of_sample(found, files, columns, bad)
    survey = replace(survey, seen=len(rows), duplicates=len(rows) - len(set(rows)))
    from launcher.data import surveying_chat  # Late, because few runs train on conversations.

    try:
        return surveying_chat.with_tokens(survey, found, data, bad, task)
    except PackageMissing as missing:
        return replace(survey, missing=missing)


def _of_sample(found: Sample, files: Sequence[Path], columns: Sequence[str], bad: BadRows) -> Survey:
    blocks = found.blocks
    rows, _ = sampling.ratio_estimate(found.weight, [b.weight for b in blocks], [b.documents for b in blocks])
    return Survey(
        format=_NAMED.get(found.kind, found.kind),
        files=len(files),
        bytes=round(found.weight),
        columns=tuple(columns),
        rows=found.rows if found.rows is not None else round(rows),
        rows_exact=found.rows is not None,
        whole=found.whole,
        bad=bad,
    )


def _texts(block: Block, data: DataSpec, names: Iterator[str], bad: BadRows) -> list[str]:
    if block.text is not None:
        return [block.text]
    texts = []
    for row, place in zip(block.rows, block.places, strict=True):
        try:
            texts.append(documents.text_of(row, data, next(names)))
        except Unusable as error:
            bad.refuse(error, place)
    return texts


def _with_tokens(survey: Survey, found: Sample, texts: Sequence[Sequence[str]], data: DataSpec) -> Survey:
    try:
        words = quick_tokenizer(data.tokenizer, data.roles)
    except PackageMissing as missing:
        return replace(survey, missing=missing)
    bytes_alone = isinstance(words, ByteTokenizer)
    units = list(_units(found.blocks, texts, whole=bytes_alone))
    counted = [count_tokens(words, unit.texts, ends=unit.ends) for unit in units]
    weights = [unit.weight for unit in units]
    tokens, error = sampling.ratio_estimate(found.weight, weights, [each.tokens for each in counted])
    exact = found.whole and all(unit.exact for unit in units)
    if bytes_alone and found.kind == "text" and not found.packed:
        tokens, exact = found.weight, True
    return replace(
        survey,
        tokens=round(tokens),
        tokens_error=0 if exact else max(1, math.ceil(error)),
        vocabulary=words.size,
        largest=max((each.largest for each in counted), default=-1),
    )


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit of tokenising: some texts, or a piece of one, with the bytes that they represent."""

    weight: float
    texts: Sequence[str]
    ends: int
    exact: bool


def _units(blocks: Sequence[Block], texts: Sequence[Sequence[str]], *, whole: bool) -> Iterator[_Unit]:
    total = sum(len(text) for each in texts for text in each)
    if whole or total <= _TOKENISED:
        for block, each in zip(blocks, texts, strict=True):
            full = [text for text in each if text]
            yield _Unit(block.weight, full, len(full) if block.text is None else block.documents, exact=True)
        return
    pieces = [piece for block, each in zip(blocks, texts, strict=True) for piece in _pieces(block, each)]
    step = math.ceil(total / _TOKENISED)
    yield from pieces[::step]


def _pieces(block: Block, texts: Sequence[str]) -> Iterator[_Unit]:
    chars = sum(map(len, texts)) or 1
    group: list[str] = []
    size = ends = 0
    for text in texts:
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE]
            group.append(piece)
            size += len(piece)
            ends += start + _PIECE >= len(text) and bool(block.documents)
            if size >= _PIECE:
                yield _Unit(block.weight * size / chars, group, ends, exact=False)
                group, size, ends = [], 0, 0
    if group:
        yield _Unit(block.weight * size / chars, group, ends, exact=False)


def _of_ids(files: Sequence[Path], dtype: str) -> Survey:
    code, width = _TYPES[dtype]
    for path in files:
        with errors_named(path):
            check_token_type(path, dtype)
    sizes = [path.stat().st_size for path in files]
    largest = -1
    for path, size in zip(files, sizes, strict=True):
        if size % width:
            other = next((name for name, (_, bytes_) in _TYPES.items() if size % bytes_ == 0), None)
            rule = f"{path} has {size} bytes, not a multiple of the {width} of data.token_dtype={dtype}"
            raise Unusable("data.path", str(path), rule, [f"data.token_dtype={other}"] if other else ())
    for path, size, offset in sampling.places(files, sizes):
        with errors_named(path), regular.opened(path) as file:
            file.seek(offset - offset % width)
            ids = array.array(code, file.read(min(_IDS, size) // width * width))
        if sys.byteorder == "big":
            ids.byteswap()
        largest = max(largest, max(ids, default=-1))
    return Survey(format="token ids", files=len(files), bytes=sum(sizes), tokens=sum(sizes) // width, largest=largest)
