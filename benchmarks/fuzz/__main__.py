"""Random hostile and malformed input for every kind of file that other people may write.

    python -m benchmarks.fuzz [--cases 20000] [--first N] [--seed N] [--processes N] [--minutes M]
        [--seconds S] [--keep]

Sources: command lines, questions of ``plan``, recipes, files for the importers, points, run directories, locks. In
place of some files lie pipes, devices, sockets, links and folders. Every answer must be an exit status of
docs/contract/commands.md within ``--seconds``, with no traceback, no file written, no character that acts on a
terminal, an answer for each point, each key of an imported file in one of the four lists, and no value of the input in
generated shell text unless it is quoted.
``tests/benchmarks/test_fuzz.py`` runs the first hundred, whatever time they take.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz import foreign, odd, records, words
from benchmarks.fuzz.case import Case, Draw
from benchmarks.fuzz.judge import Fault, fault
from benchmarks.reporting import keep

SOURCES: dict[Draw, int] = {
    words.draw: 20,
    words.draw_plan: 5,
    words.draw_recipe: 20,
    foreign.draw: 20,
    foreign.draw_points: 10,
    records.draw: 15,
    records.draw_lock: 10,
}
"""Sources of input, and how often each is drawn, in percent."""


LIMIT_S = 10.0
"""Of processor time, which others on the machine lengthen less than the clock's; several times what the slowest takes,
which is said in the result."""


def cases(seed: int) -> Iterator[Case]:
    """Yield cases forever; the same seed gives the same cases."""
    chance = random.Random(seed)
    while True:
        [draw] = chance.choices(list(SOURCES), list(SOURCES.values()))
        yield odd.sometimes(chance, draw(chance))


@dataclass(frozen=True, slots=True)
class Part:
    """The results of one process.

    Attributes:
        done: How many cases of each source.
        odd: How many of them had a pipe, a device, a socket, a link or a folder in place of a file, by what it was.
        found: Every fault that they show.
        slowest_s: Processor time of the case that took longest.
    """

    done: Counter[str]
    odd: Counter[str]
    found: list[Fault]
    slowest_s: float


def ran(count: int, seed: int, first: int, step: int, deadline: float, limit_s: float) -> Part:
    """Run every ``step``-th case from the ``first`` on, up to a number of cases or a time."""
    done, strange, found, slowest = Counter[str](), Counter[str](), list[Fault](), 0.0
    with tempfile.TemporaryDirectory() as name:
        for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "LAUNCH_CACHE"):
            os.environ[variable] = str(Path(name, variable))
        folder = Path(name, "work")
        folder.mkdir()
        for case in itertools.islice(cases(seed), first, count, step):
            if time.monotonic() > deadline:
                break
            begin = time.process_time()
            what = fault(case, folder, limit_s)
            slowest = max(slowest, time.process_time() - begin)
            done[case.source] += 1
            strange.update(set(case.odd.values()))
            if what is not None:
                found.append(Fault(case, what))
                print(found[-1], flush=True)
    return Part(done, strange, found, slowest)


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="skip this many cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after this many minutes")
    within = "processor seconds that an answer may take (default %(default)s)"
    parser.add_argument("--seconds", type=float, default=LIMIT_S, help=within)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/fuzz.json")
    options = parser.parse_args()
    begin = time.monotonic()
    end, deadline = options.first + options.cases, begin + 60 * options.minutes
    parts = range(options.first, options.first + options.processes)
    with ProcessPoolExecutor(options.processes) as pool:
        waited = [
            pool.submit(ran, end, options.seed, part, options.processes, deadline, options.seconds) for part in parts
        ]
        results = [part.result() for part in waited]
    done = sum((part.done for part in results), Counter[str]())
    strange = sum((part.odd for part in results), Counter[str]())
    faults = sum(len(part.found) for part in results)
    seconds = round(time.monotonic() - begin)
    if options.keep:
        count = f"--cases {done.total()} --seed {options.seed} --processes {options.processes}"
        figures = {
            "seed": options.seed,
            "first": options.first,
            "cases": done.total(),
            "by_source": dict(done),
            "in_place_of_files": dict(strange),
            "faults": faults,
            "slowest_processor_s": round(max(part.slowest_s for part in results), 2),
            "seconds": seconds,
        }
        keep("fuzz", f"python -m benchmarks.fuzz {count} --keep", figures)
    print(f"{done.total()} cases, {faults} faults, {seconds} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
