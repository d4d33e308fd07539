"""Compares a rank of a real run with the same rank rehearsed alone."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.base import typed
from launcher.base.files import write_atomically
from launcher.job.memory import Rehearsed
from tests.support import ranks as ranks_of_a_job
from tests.support import train_many
from tests.support.training import environment, prepare, train_all

_LATE = 3
"""Most times that a real run is made. Gloo's thread sometimes frees a collective's tensors late, which adds them to a
peak (``worker.memory.live_bytes``). Nothing lowers a peak, so the lowest of equal runs is free of this."""


def rehearse(directory: Path, ranks: Iterable[int], *, backend: str, steps: int = 2) -> dict[int, Rehearsed]:
    """What ranks of the run in a directory measure alone, each in a process without another run's objects."""
    return {rank: typed.read(Rehearsed, document(directory, rank, backend=backend, steps=steps)) for rank in ranks}


def document(directory: Path, rank: int, *, backend: str, steps: int = 2) -> dict[str, Any]:
    """The document that the program writes for a rank: its measurement, or an error."""
    out = directory / f"rehearsed.{rank}.json"
    ranks_of_a_job.run(
        _main,
        [backend, "--run", str(directory), "--rank", str(rank), "--steps", str(steps), "--out", str(out)],
        imports=train_many.IMPORTS[backend],
        count=1,
        environment=environment(backend),
        log=directory / f"rehearsed.{rank}.log",
    )
    content: dict[str, Any] = json.loads(out.read_text())
    return content


def _main(backend: str, *arguments: str) -> None:
    import torch  # Imported here, as in launcher.worker: only ranks need it.

    torch.set_num_threads(1)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name)  # The rehearsal sets them itself.
    program = importlib.import_module("launcher.worker.rehearse.__main__")
    out, content = program.rehearse(arguments)
    write_atomically(out, content)


def compared(
    folder: Path, overrides: Sequence[str], *, ranks: int, which: Sequence[int], within: float
) -> dict[int, dict[str, tuple[int, int]]]:
    """Peaks of a rank's phases and ``static``: rehearsed alone, and in the real run of all ranks.

    Args:
        folder: Folder of the run.
        overrides: Overrides of the run (``tests.support.training``).
        ranks: Number of ranks of the run.
        which: Ranks to compare.
        within: The relative error at which the real run is not repeated.
    """
    spec = prepare(folder / "spec", *overrides, ranks=ranks)
    alone = rehearse(folder / "spec", which, backend=spec.backend.name)
    pairs: dict[int, dict[str, tuple[int, int]]] = {}
    for attempt in range(_LATE):
        train_all(folder, {f"real{attempt}": (*overrides, "train.steps=2")}, ranks=ranks)
        for rank, measured in _real(folder / f"real{attempt}").items():
            if rank in which:
                before = pairs.setdefault(rank, {})
                for name, value in measured.items():
                    lowest = min(value, before[name][1]) if name in before else value
                    before[name] = (_of(alone[rank], name), lowest)
        if all(error(*pair) <= within for pairs_of_rank in pairs.values() for pair in pairs_of_rank.values()):
            break
    return pairs


def error(found: int, real: int) -> float:
    """Error relative to the real run."""
    return abs(found / real - 1)


def _real(directory: Path) -> dict[int, Mapping[str, int]]:
    content = json.loads((directory / "memory.json").read_text())
    return {
        entry["rank"]: {
            **{phase: peak for phase, peak in entry["phases"].items() if peak is not None},
            "static": entry["static_bytes"],
        }
        for entry in content["ranks"]
    }


def _of(measured: Rehearsed, name: str) -> int:
    if name == "static":
        assert measured.static_bytes is not None
        return measured.static_bytes
    return measured.phases[name].allocated_bytes
