"""The first losses of a run, put into its lock: a repeated run is compared with them, to the last bit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.files import write_text_atomically
from launcher.rundir import results

NAME = "run.lock.yaml"
"""The lock's file in a run directory."""

FIRST_LOSSES = 20
"""Lines of ``metrics.jsonl`` that a lock keeps: enough to tell one run from another."""


LOSSES = "losses:"
"""The lock's key of them."""


def add_losses(run: Path) -> None:
    """Put the first losses of a run into its lock; a lock that has them stays as it is."""
    path = run / NAME
    try:
        text, lines = files.read_text(path, files.MOST_OF_A_RECORD), files.last_lines(run / "metrics.jsonl")
    except OSError:
        return
    rows = [_row(row) for row in itertools.islice(results.training(lines), FIRST_LOSSES)]
    head, mark, _ = text.rpartition(f"{LOSSES} []\n")
    if mark and rows:
        write_text_atomically(path, f"{head}{LOSSES}\n" + "".join(map(as_line, rows)))


def as_line(row: Mapping[str, Any]) -> str:
    """A row as an item of YAML, which spells NaN and infinity otherwise than JSON; a run in fp16 may begin so."""
    return f"- {json.dumps(dict(row)).replace('NaN', '.nan').replace('Infinity', '.inf')}\n"


def _row(content: Mapping[str, Any]) -> dict[str, Any]:
    norm = content.get("grad_norm")
    return {"step": content["step"], "loss": content["loss"], "grad_norm": norm if results.is_number(norm) else None}
