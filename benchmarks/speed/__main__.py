"""Score the predicted speed against every data file of a folder for which there is an adapter."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.speed import calibrating, publishing, simumax
from benchmarks.speed.checking import checked, unseen
from benchmarks.speed.entries import Entry, entries
from benchmarks.speed.estimating import Judged, all_judged
from benchmarks.speed.families import Family, families, not_counted
from benchmarks.speed.publishing import percent, share
from benchmarks.speed.row import Row


def main() -> int:
    """Print the scores as a table or as JSON; 0 unless there was nothing to score."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder of measured runs")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--only", help="name of one file")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write each scored row's figures as JSON lines")
    parser.add_argument(
        "--write-calibration", action="store_true", help="fit the constants and write them into the package"
    )
    parser.add_argument("--publish", action="store_true", help="write benchmarks/results/speed.md")
    parser.add_argument(
        "--no-host-constants",
        action="store_true",
        help="score without numbers fitted to scored rows (`fitted` in frameworks.yaml): see the raw columns",
    )
    arguments = parser.parse_args()
    if arguments.no_host_constants and (arguments.write_calibration or arguments.publish):
        parser.error("--no-host-constants only scores: --publish has its figures beside the others")
    found = families(dict(_all(arguments.data, arguments.only, host_constants=not arguments.no_host_constants)))
    if arguments.write_calibration:
        calibrating.write(found)
        found = [calibrating.again(family) for family in found]
    answer = list(entries(found))
    if arguments.rows is not None:
        arguments.rows.write_text("".join(f"{json.dumps(line)}\n" for line in _rows(found)))
    if arguments.json:
        print(json.dumps([entry.as_dict() for entry in answer], indent=1))
    else:
        print("\n".join(_table(answer)))
    if arguments.publish:
        plain = families(dict(_all(arguments.data, arguments.only, host_constants=False)))
        beside = list(simumax.table((item for family in found for item in family.items), arguments.data))
        publishing.publish(answer, [entry for entry in entries(_fitted(plain)) if entry.file], beside)
    return 0 if any(entry.rows for entry in answer) else 1


def _fitted(found: Sequence[Family]) -> list[Family]:
    """The sources some of whose rows have features that were chosen on them."""
    backends = ((family, [item.row.backend for item in family.items]) for family in found)
    return [family for family, each in backends if any(one is not None and one.fitted for one in each)]


def _all(folder: Path, only: str | None, *, host_constants: bool) -> Iterator[tuple[str, list[Judged | Row]]]:
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".csv", ".jsonl") or (only is not None and path.name != only):
            continue
        try:
            adapter = importlib.import_module(f"benchmarks.speed.adapters.{path.stem}")
        except ModuleNotFoundError:
            print(f"{path.name}: no adapter", file=sys.stderr)
            continue
        yield path.name, list(all_judged(adapter.rows(path), host_constants=host_constants))


def _rows(found: Sequence[Family]) -> Iterator[dict[str, object]]:
    """The figures of each scored row, for analysis."""
    for family in found:
        for item in family.items:
            row = item.row
            yield {
                "id": row.name,
                "file": family.file,
                "family": row.family,
                "framework": row.framework,
                "gpu": row.gpu,
                "problem": row.problem,
                "layout": row.layout,
                "counted": not_counted(row) is None,
                "flags": sorted(row.flags),
                "precision": row.precision,
                "measured": row.measured,
                "predicted_raw": item.raw,
                "predicted": item.predicted,
                "constant": item.constant.whose,
                "band": (item.constant.low, item.constant.high),
                "checked": item.raw * checked(item).value,
                "unseen": item.raw * unseen(item).value,
                "crowding": item.crowding,
                "parts": item.parts,
                "others": item.others,
            }


def _table(answer: Sequence[Entry]) -> Iterator[str]:
    heads = (
        *("median", "p90", "raw", "raw p90", "problems", "pick", "worst", "spearman", "in band"),
        *("checked", "p90", "in band", "unseen", "p90", "in band", "held out", "checked", "unseen"),
    )
    yield f"{'family':<26} {'rows':>5} {' '.join(f'{head:>8}' for head in heads)}"
    for entry in answer:
        errors = (entry.median, entry.p90, entry.median_uncalibrated, entry.p90_uncalibrated)
        shares = (entry.pick, entry.pick_worst, entry.spearman)
        stated = (number for one in (entry.checked, entry.unseen) for number in (one.median, one.p90, one.within))
        cells = [*map(percent, errors), str(entry.problems), *map(share, shares)]
        held_out = entry.held_out
        cells += map(percent, (entry.within, *stated, held_out.within, held_out.checked, held_out.unseen))
        yield f"{entry.family:<26} {entry.rows:>5} {' '.join(f'{cell:>8}' for cell in cells)}"
    yield from _baselines(next(entry for entry in answer if entry.family == "all"))
    for entry in answer:
        yield from (f"  {entry.family}: {number} left out: {reason}" for reason, number in entry.left_out.items())


def _baselines(entry: Entry) -> Iterator[str]:
    for name, other in entry.baselines.items():
        cells = " ".join(f"{cell:>8}" for cell in (percent(other.median), share(other.pick), share(other.spearman)))
        yield f"all, {name:<21} {other.rows:>5} {cells}  (median, pick, Spearman; constants of these very rows)"


if __name__ == "__main__":
    sys.exit(main())
