"""Ranks of a run rehearsed alone, beside the same ranks of the run in earnest."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.job.rehearsal import Rehearsed, rehearsed
from launcher.preflight import plan
from launcher.spec.parse import parse
from tests.support import ranks as ranks_of_a_job
from tests.support import train_many
from tests.support.training import environment, prepare, train_all

OUT = "rehearsed.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A rank's peak in a phase, in bytes, as the run has measured it and as the rank alone."""

    rank: int
    phase: str
    real: int
    alone: int

    @property
    def off(self) -> float:
        """By how much the rehearsal differs, relative to the run."""
        return self.alone / self.real - 1


def main(directory: str, rank: str, steps: str) -> None:
    """Rehearse a rank of what lies in a directory, as ``python -m launcher.worker.rehearse``."""
    import torch  # As launcher.worker: only ranks import it.

    torch.set_num_threads(1)
    program = importlib.import_module("launcher.worker.rehearse.__main__")
    spec = parse(json.loads((Path(directory) / "spec.json").read_text()))
    job = plan.translate(spec, python="").at(directory)
    words = ["--run", directory, "--rank", rank, "--steps", steps, "--out", str(Path(directory) / OUT)]
    out, content = program.rehearsed([*words, "--", *job.worker_argv])
    out.write_text(json.dumps(content))


def document(directory: Path, *overrides: str, ranks: int, rank: int, steps: int = 3) -> dict[str, Any]:
    """Rehearse a rank of a run of ``SMALL`` in a new directory: what it has measured, or an error."""
    spec = prepare(directory, *overrides, ranks=ranks)
    ranks_of_a_job.run(
        main,
        [str(directory), str(rank), str(steps)],
        imports=train_many.IMPORTS[spec.backend.name],
        count=1,
        environment=environment(),
        log=directory / "rank.log",
    )
    content: dict[str, Any] = json.loads((directory / OUT).read_text())
    return content


def rehearse(directory: Path, *overrides: str, ranks: int, rank: int, steps: int = 3) -> Rehearsed:
    """As :func:`document`, of a rank that can be rehearsed."""
    content = document(directory, *overrides, ranks=ranks, rank=rank, steps=steps)
    assert "error" not in content, content["error"]
    return rehearsed(content)


def peaks(folder: Path, overrides: Sequence[str], *, ranks: int, alone: Sequence[int]) -> Iterator[Peak]:
    """Train a run on so many ranks, rehearse some of them, and put the peaks of each phase side by side.

    Args:
        folder: A new one.
        overrides: Of the run, behind those of ``SMALL``; three steps, without a checkpoint.
        ranks: CPU processes.
        alone: The ranks to rehearse.
    """
    words = (*overrides, "train.steps=3")
    train_all(folder, {"real": words}, ranks=ranks)
    measured = json.loads((folder / "real" / "memory.json").read_text())["ranks"]
    for rank in alone:
        found = rehearse(folder / f"rank{rank}", *words, ranks=ranks, rank=rank).phases
        real = {phase: peak for phase, peak in measured[rank]["phases"].items() if peak is not None}
        assert found.keys() >= real.keys(), f"phases of a run: {sorted(real)}, of a rehearsal: {sorted(found)}"
        for phase, peak in real.items():
            yield Peak(rank=rank, phase=phase, real=peak, alone=found[phase].allocated_bytes)
