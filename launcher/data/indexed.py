"""Indexed data sets of Megatron-LM: ``PREFIX.bin`` holds token ids end to end, ``PREFIX.idx`` says of which type.

The layout of the index is ``core/datasets/indexed_dataset.py`` of megatron-core: nine bytes of a mark, eight of a
version, one of the type. Documents' ends, which lie behind it, are not read: ids are one long row here.
"""

from __future__ import annotations

from pathlib import Path

from launcher.base.files import opened
from launcher.data.unusable import Unusable

_MARK = b"MMIDIDX\x00\x00"
_TYPE_AT = len(_MARK) + 8
_TYPES = {4: "uint32", 8: "uint16"}
"""``DType``: int32, whose ids are none of them negative, and uint16; ``preprocess_data.py`` writes no others."""


def tokens_of(prefix: Path) -> Path | None:
    """The file of token ids of a data set that is named by its prefix, as ``--data-path`` names it."""
    found, index = (prefix.with_name(prefix.name + suffix) for suffix in (".bin", ".idx"))
    return found if found.is_file() and index.is_file() else None


def check_type(tokens: Path, dtype: str) -> None:
    """See whether the index beside a file of ids, where there is one, agrees with ``data.token_dtype``.

    Raises:
        Unusable: It does not, or it is no index.
    """
    index = tokens.with_suffix(".idx")
    if tokens.suffix != ".bin" or not index.is_file():
        return
    with opened(index) as file:
        head = file.read(_TYPE_AT + 1)
    if not head.startswith(_MARK) or len(head) <= _TYPE_AT or head[_TYPE_AT] not in _TYPES:
        rule = "it is no index of token ids as Megatron-LM's preprocess_data.py writes one"
        raise Unusable("data.path", str(index), rule)
    there = _TYPES[head[_TYPE_AT]]
    if there != dtype:
        raise Unusable("data.token_dtype", dtype, f"{index} says {there}", [f"data.token_dtype={there}"])
