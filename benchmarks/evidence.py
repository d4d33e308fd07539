"""Modes of each engine that measurements or runs back: ``python -m benchmarks.evidence --data DIR [--runs DIR...]``.

Counts, by engine and part of a mode (``launcher.estimate.memory.modes``), the scoreboard rows whose framework is that
engine, those of ``benchmarks.gpu``, and runs of its own worker below the given folders that took a step: those of this
repository's tests (``pytest tests/worker --basetemp DIR -o tmp_path_retention_policy=all``), or any others. Counts of
runs never fall below those in the existing file, so running part of the tests is enough. Writes ``modes.json``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from benchmarks.reporting import RESULTS
from launcher import backends
from launcher.base.errors import ConfigErrors
from launcher.config.request import request
from launcher.estimate.memory.modes import MODES, computing, sharing
from launcher.rundir.provenance import versions
from launcher.spec import RunSpec
from launcher.spec.parse import parse

_WHAT = (
    "runs behind each part of a mode, by engine and way: measured, of the scoreboards' files, by its framework; runs,"
    " of the engine's own worker on CPU ranks"
)

_SAME = {
    "megatron": ("Megatron-LM", "Megatron-Core", "NeMo", "Megatron-Bridge"),
    "fsdp": ("torchtitan",),
    "deepspeed": ("DeepSpeed",),
}
"""The frameworks of rows of speed whose code is that of an engine of ours."""

_NOT_STATED = ("loss", "optimizer")
"""Words of parts that the columns of rows of speed do not state."""


class Seen(NamedTuple):
    """A run with evidence: its kind, ``measured`` or ``runs``, its engine and way, and the parts that it backs."""

    kind: str
    engine: str
    way: str
    parts: tuple[str, ...]


type Counts = dict[str, dict[str, dict[str, dict[str, int]]]]
"""Runs by engine, way, part and kind."""


def main() -> None:
    """Write the file, and print what it says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder of measured runs")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="folders with run directories")
    arguments = parser.parse_args()
    found = [*_rows_of_memory(arguments.data), *_rows_of_speed(arguments.data)]
    found += [*_own_runs(), *_on_a_gpu()]
    for folder in arguments.runs:
        found += _runs(folder)
    engines = _kept(_counted(found), json.loads(MODES.read_text())["engines"])
    content = {
        "what": _WHAT,
        "command": "python -m benchmarks.evidence --data DIR --runs DIR",
        "date": time.strftime("%Y-%m-%d"),
        "commit": versions()["git"],
        "engines": json.loads(json.dumps(engines, sort_keys=True)),
    }
    MODES.write_text(json.dumps(content, indent=1) + "\n")
    for ways in engines.values():
        for way, parts in ways.items():
            print(f"{way}: {', '.join(parts)}")


def _counted(found: list[Seen]) -> Counts:
    counts: Counts = {}
    for seen in sorted(found):
        for part in seen.parts:
            kinds = counts.setdefault(seen.engine, {}).setdefault(seen.way, {}).setdefault(part, {})
            kinds[seen.kind] = kinds.get(seen.kind, 0) + 1
    return counts


def _kept(counts: Counts, before: Counts) -> Counts:
    """The counts with as many runs as there were before."""
    for engine, ways in before.items():
        for way, parts in ways.items():
            for part, kinds in parts.items():
                now = counts.setdefault(engine, {}).setdefault(way, {}).setdefault(part, {})
                if most := max(now.get("runs", 0), kinds.get("runs", 0)):
                    now["runs"] = most
                if not now:
                    del counts[engine][way][part]
    return counts


def _seen(kind: str, spec: RunSpec, left_out: tuple[str, ...] = ()) -> Iterator[Seen]:
    backend = backends.of(spec)
    way = backend.mode(spec)
    if way is not None:
        parts = [part for part in (*sharing(spec), *computing(spec)) if not set(left_out) & set(part.split())]
        yield Seen(kind, backend.framework, way, tuple(parts))


def _rows_of_memory(folder: Path) -> Iterator[Seen]:
    """Rows of our own engines, and of those that run on the same one."""
    for path, adapter in _adapters("benchmarks.memory.adapters", folder):
        for row in adapter.rows(path):
            if row.spec is None or not row.measured:
                continue
            engine = backends.of(row.spec).runs_on(row.spec)
            if row.backend is None or (engine is not None and engine == row.backend.runs_on(row.spec)):
                yield from _seen("measured", row.spec)


def _rows_of_speed(folder: Path) -> Iterator[Seen]:
    for path, adapter in _adapters("benchmarks.speed.adapters", folder):
        for row in adapter.rows(path):
            if row.spec is not None and row.measured and row.framework in _SAME[row.spec.backend.name]:
                yield from _seen("measured", row.spec, _NOT_STATED)


def _adapters(package: str, folder: Path) -> Iterator[tuple[Path, ModuleType]]:
    for path in sorted(folder.iterdir()):
        name = f"{package}.{path.stem}"
        if path.suffix in (".csv", ".jsonl") and importlib.util.find_spec(name) is not None:
            yield path, importlib.import_module(name)


def _own_runs() -> Iterator[Seen]:
    """The runs of ``benchmarks.own_runs``."""
    figures = json.loads((RESULTS / "own_runs.json").read_text())["figures"]
    for run in figures["runs"]:
        yield from _seen("runs", request([*figures["common"].split(), *run["overrides"]]).require())


def _on_a_gpu() -> Iterator[Seen]:
    """The runs of ``benchmarks.gpu`` that one card measured."""
    for run in json.loads((RESULTS / "gpu.json").read_text())["runs"]:
        if run["measured"]:
            yield from _seen("measured", request([*run["overrides"], "hardware=h100_80g"]).require())


def _runs(folder: Path) -> Iterator[Seen]:
    """Run directories in which a step was taken."""
    for path in sorted(folder.rglob("spec.json")):
        metrics = path.with_name("metrics.jsonl")
        if metrics.is_file() and metrics.stat().st_size:
            try:
                yield from _seen("runs", parse(json.loads(path.read_text())))
            except (ConfigErrors, ValueError):
                continue


if __name__ == "__main__":
    main()
