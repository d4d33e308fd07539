"""Tokens a second from 33 sources, each row with its layout, GPU and framework.

vTrain's rows do not say the vocabulary; it is taken to be the 51,200 rows of Megatron-DeepSpeed's GPT examples (50,257
of GPT-2, padded to the next multiple of 128 x 8 as ``--make-vocab-size-divisible-by`` does), and every other blank
leaves its row out, unless the framework's documents say what it means (``frameworks.yaml``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.memory.row import rows_of_csv
from benchmarks.speed.expressing import Line, express
from benchmarks.speed.row import Row
from launcher.config.catalog import Catalog

VTRAIN_VOCABULARY = "51200"


def rows(path: Path) -> Iterator[Row]:
    """Each run of the file."""
    return rows_of_csv(path, _row)


def _row(line: Line, catalog: Catalog) -> Row:
    if line["problem"].startswith("vtrain|"):
        line["vocab"] = line["vocab"] or VTRAIN_VOCABULARY
    return express(line, catalog)
