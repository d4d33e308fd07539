"""From the options of ``python -m benchmarks.gpu`` to its rows, once all packages can be imported."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu import matrix, rehearsal, tasks, training
from benchmarks.gpu.document import Document, DocumentError
from benchmarks.gpu.matrix import Point
from benchmarks.gpu.session import Session
from benchmarks.reporting import RESULTS
from launcher.base.machine import facts

NO_GPU = (
    "benchmarks.gpu: this machine shows no GPU, and this script measures one; nothing was written (--rehearse tries "
    "every row on the CPU)"
)


def start(options: argparse.Namespace, scratch: Path) -> int:
    """Measure what the options choose.

    Returns:
        0; 1 where no run could be measured, 2 without a GPU or where the file cannot be written.
    """
    here = facts()
    if options.rehearse:
        here = replace(here, gpus=())
    elif not here.gpus:
        print(NO_GPU, file=sys.stderr)
        return 2
    usual = Path("build/gpu-rehearsal.json") if options.rehearse else RESULTS / "gpu.json"
    try:
        document = Document(options.out or usual, here, rehearsal=options.rehearse, resume=options.resume)
    except DocumentError as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    try:
        return _measured(options, document, Session(document, here, scratch, minutes=options.minutes), scratch)
    except KeyboardInterrupt:
        print(f"benchmarks.gpu: interrupted; {document.path} holds the rows until here", file=sys.stderr)
        return 130


def _measured(options: argparse.Namespace, document: Document, session: Session, scratch: Path) -> int:
    """Measure the rows, most valuable first; return the exit status."""
    session.measure(_chosen(matrix.first(), options))
    size = training.REHEARSED if options.rehearse else training.SIZE
    if options.only in "50 steps":
        training.compare(session, document, scratch, size)
    session.measure(_chosen(matrix.rest(), options))
    if options.only in "tasks":
        tasks.measure(session, document, scratch, size)
    rows = document.rows("runs") + document.rows("training") + document.rows("tasks")
    done = sum(row["measured"] is not None for row in rows)
    print(f"{done} of {len(rows)} rows measured: {document.path}", flush=True)
    return 0 if done else 1


def _chosen(points: tuple[Point, ...], options: argparse.Namespace) -> list[Point]:
    made = [rehearsal.rehearsed(point) for point in points] if options.rehearse else list(points)
    return [point for point in made if options.only in point.name]
