"""Score the planner on every problem of the measured files: its pick, and the place of the measured winner."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.plan import publishing, restricted, unrestricted
from benchmarks.plan.entries import Entry, Judged, entries
from benchmarks.plan.problems import Problem, problems
from benchmarks.plan.publishing import cells


def main() -> int:
    """Print the scores as a table or as JSON; 0 unless there was no problem to solve."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder of measured runs")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--only", help="name of one file")
    parser.add_argument("--restricted", action="store_true", help="only the choice among the measured layouts")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write each problem's answers as JSON lines")
    parser.add_argument(
        "--publish", action="store_true", help="write benchmarks/results/plan.md and benchmarks/results/plan.json"
    )
    arguments = parser.parse_args()
    if arguments.publish and arguments.restricted:
        parser.error("--restricted leaves out half of what --publish writes")
    found = [_judged(each, search=not arguments.restricted) for each in problems(arguments.data, arguments.only)]
    answer = list(entries(found))
    if arguments.rows is not None:
        arguments.rows.write_text("".join(f"{json.dumps(one.as_dict())}\n" for one in found))
    if arguments.json:
        print(json.dumps([entry.as_dict() for entry in answer], indent=1))
    else:
        print("\n".join(_table(answer)))
    if arguments.publish:
        publishing.publish(answer)
    return 0 if answer else 1


def _judged(problem: Problem, *, search: bool) -> Judged:
    pick = restricted.pick(problem)
    if not search:
        return Judged(problem=problem, pick=pick)
    return Judged(
        problem=problem,
        pick=pick,
        winner=unrestricted.search(problem),
        as_run=unrestricted.search(problem, as_run=True),
    )


def _table(answer: Sequence[Entry]) -> Iterator[str]:
    heads = ("problems", "pick", "worst", "OOM", "no fit", "in ten", "distance", "as run", "distance")
    yield f"{'family':<22} {' '.join(f'{head:>8}' for head in heads)}"
    for entry in answer:
        yield f"{entry.family:<22} {' '.join(f'{cell:>8}' for cell in cells(entry))}"


if __name__ == "__main__":
    sys.exit(main())
