"""The run's tokens as an indexed data set, ``.bin`` and ``.idx``, which Megatron-LM's own programs read.

The run itself reads its samples in the order of every other engine; the data set lies beside it, so that the argument
list that ``launch show`` prints also trains ``pretrain_gpt.py`` of a checkout on the same tokens.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from megatron.core.datasets.indexed_dataset import _IndexWriter

SEQUENCE = 2**20
"""Tokens of one sequence at most; the index counts them in 32 bits."""


def write(prefix: Path, tokens: np.memmap[Any, Any]) -> None:
    """Write ``<prefix>.bin``, which is the file of ids itself, and ``<prefix>.idx``.

    Args:
        prefix: Without a suffix; what lies there is replaced.
        tokens: A file of unsigned ids, mapped.
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    target, index = prefix.with_suffix(".bin"), prefix.with_suffix(".idx")
    for path in (target, index):
        path.unlink(missing_ok=True)
    try:
        os.link(str(tokens.filename), target)
    except OSError:  # Another file system, as the user's cache may be on.
        target.symlink_to(Path(str(tokens.filename)).absolute())
    lengths = [min(SEQUENCE, len(tokens) - start) for start in range(0, len(tokens), SEQUENCE)]
    kind = np.int32 if tokens.dtype == np.uint32 else tokens.dtype.type  # Megatron has no uint32; ids are below 2^31.
    with _IndexWriter(str(index), kind) as writer:
        writer.write(lengths, None, [0, len(lengths)])
