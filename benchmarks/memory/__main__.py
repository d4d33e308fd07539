"""Score every data file of a folder for which there is an adapter."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.memory import residuals, scoreboard
from benchmarks.memory.scoring import Rows, Score, judged_rows, lines


def main() -> int:
    """Print the scores as a table or as JSON; 0 unless there was nothing to score."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder of measured runs")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--only", help="name of one file")
    parser.add_argument("--write-band", action="store_true", help="write the error band's residuals into the package")
    parser.add_argument(
        "--publish", action="store_true", help="write benchmarks/results/memory.md and the README's table"
    )
    arguments = parser.parse_args()
    files = list(_all(arguments.data, arguments.only))
    found = [line for rows in files for line in lines(rows)]
    if arguments.json:
        print(json.dumps([line.as_dict() for line in found], indent=1))
    else:
        print("\n".join(_table(found)))
    if arguments.write_band:
        residuals.write({rows.file: rows.items for rows in files})
    if arguments.publish:
        scoreboard.publish(files)
    return 0 if found else 1


def _all(folder: Path, only: str | None) -> Iterator[Rows]:
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".csv", ".json", ".jsonl") or (only is not None and path.name != only):
            continue
        try:
            adapter = importlib.import_module(f"benchmarks.memory.adapters.{path.stem}")
        except ModuleNotFoundError:
            print(f"{path.name}: no adapter", file=sys.stderr)
            continue
        yield judged_rows(path.name, adapter.rows(path))


def _table(lines: list[Score]) -> Iterator[str]:
    heads = " ".join(f"{word:>7}" for word in ("median", "p90", "under", "over"))
    yield f"{'file':<26} {'counter':<17} {'rows':>5} {heads} {'oom>fit':>8} {'fit>oom':>8}"
    for line in lines:
        shares = (line.median, line.p90, line.worst_under, line.worst_over)
        numbers = " ".join(f"{_percent(share):>7}" for share in shares)
        outs = f"{_percent(line.oom_called_fitting):>8} {_percent(line.fitting_called_oom):>8}"
        yield f"{line.file:<26} {line.counter:<17} {line.rows:>5} {numbers} {outs}"
    reasons = {(line.file, reason): number for line in lines for reason, number in line.left_out.items()}
    for (file, reason), number in sorted(reasons.items()):
        yield f"  {file}: {number} left out: {reason}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


if __name__ == "__main__":
    sys.exit(main())
