"""Host bytes of a run's processes beside its tensors: interpreters, torch and the engine, and the data's readers.

The figures are ``processes.json`` beside this file, written by ``python -m benchmarks.host_memory``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MEASURED = Path(__file__).with_name("processes.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Bytes of one engine's processes.

    Attributes:
        rank_bytes: Private bytes of a rank.
        reader_bytes: Private bytes of a process that reads data ahead for a rank.
        node_bytes: Private bytes of what a node has once: the launcher's process and torchrun.
        library_bytes: Pages of libraries, which a node's processes share.
    """

    rank_bytes: int
    reader_bytes: int
    node_bytes: int
    library_bytes: int


@cache
def of_engine(name: str) -> Processes:
    """The measured bytes of an engine; of one that was not measured, those of the engine with the largest ranks."""
    found = json.loads(MEASURED.read_text())["measured"]
    row = found.get(name) or max(found.values(), key=lambda each: int(each["rank_bytes"]))
    return Processes(**row)
