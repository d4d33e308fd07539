"""The planner's scoreboard as documents: ``benchmarks/results/plan.md`` and ``benchmarks/results/plan.json``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import get_args

from benchmarks.plan.entries import Entry
from benchmarks.plan.unrestricted import Standing
from benchmarks.reporting import RESULTS, machine
from benchmarks.speed.publishing import share
from launcher.rundir.provenance import versions

DOCUMENT = RESULTS / "plan.md"
FIGURES = RESULTS / "plan.json"

_COMMAND = "python -m benchmarks.plan --data DIR --publish"

_WORDS = """\
A problem is everything that a user fixes: a model, GPUs, sequence, batch and precision, with at least three measured
layouts. The planner searches each problem with its own order; the measured framework's known properties replace the
engine's (`benchmarks/speed/frameworks.yaml`, `benchmarks/memory/frameworks`). Aleph Alpha's memory is that of torch's
own modules with the kernels that its rows name. This was chosen after looking at its runs out of memory: with
Megatron-Core's modules all four picks were such runs. No number in it is fitted.

*pick*: among the layouts that were run, including those stated to have run out of memory, the measured speed of the
planner's choice over the best measured, as geometric mean and worst. *OOM picked*: choices that are stated to have run
out of memory; they count as 0 in the worst and not in the mean. *no fit*: problems where by the estimate no layout that
was run certainly fits; the planner then takes a tight one, and if there is none, this score takes the one that is least
short of memory.

*winner in ten*: in the whole space of the engine, the share of problems whose fastest measured layout is one of the
best ten ideas, and *distance*, the median of its predicted time over that of the planner's best layout. An idea is what
is sharded, the degrees of tensor, pipeline, context, Ulysses and expert parallelism, what is offloaded, and the
precision (`launcher/planner/layouts.py`, `Kind`); micro-batch, recomputation, schedule and model chunks are sizes of
one. A layout that a source never tried may be faster than its fastest run. *as run* therefore fixes what all runs of a
problem have in common, such as recomputation or the ZeRO stage.

`all` covers the sources with certain dense pre-training runs, and nanotron: the geometric mean of their picks, the
worst problem, and means of their shares. Uncertain runs, models with experts and nanotron's runs on 512 GPUs, which
nanotron itself calls unexplained, are on separate lines."""

_PLACES = """\
*shown*: the same layout, with its micro-batch and recomputation; *idea*: another size of it; *slower*: ten other ideas
rank before it; *unfit*: by the estimate it does not certainly fit; *outside*: the space lacks it, such as tensor
parallelism across nodes, or stages of sizes that the engine refuses."""


def publish(answer: Sequence[Entry]) -> None:
    """Write both."""
    DOCUMENT.write_text("\n".join(document(answer)) + "\n")
    git = versions()["git"]
    content = {
        "command": _COMMAND,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": {**versions(), "git": git and {key: git[key] for key in ("commit", "dirty")}},
        "figures": {"entries": [entry.as_dict() for entry in answer]},
    }
    FIGURES.write_text(json.dumps(content, indent=1) + "\n")


def document(answer: Sequence[Entry]) -> Iterator[str]:
    """Lines of the first."""
    git = versions()["git"]
    yield "# Scoreboard: the planner's choice against measured runs"
    yield ""
    commit = git["commit"][:12] if git else "unknown"
    yield f"Written by `{_COMMAND}` on {time.strftime('%Y-%m-%d')} at commit {commit}."
    yield ""
    yield _WORDS
    yield ""
    heads = "pick, worst pick, OOM picked, no fit, winner in ten, distance, as run in ten, as run distance"
    yield f"| runs of | problems | {heads.replace(', ', ' | ')} |"
    yield f"|{'---|' * 10}"
    yield from (f"| {entry.family} | {' | '.join(cells(entry))} |" for entry in answer)
    yield ""
    yield "## Where the measured winners rank"
    yield ""
    yield _PLACES
    yield ""
    places = get_args(Standing.__value__)
    yield f"| runs of | {' | '.join(places)} |"
    yield f"|{'---|' * (len(places) + 1)}"
    for entry in answer:
        yield f"| {entry.family} | {' | '.join(str(entry.standings.get(place, 0)) for place in places)} |"


def cells(entry: Entry) -> list[str]:
    """The figures of an entry as text."""
    picks = [share(entry.pick), share(entry.pick_worst), str(entry.oom_picked), str(entry.nothing_fits)]
    places = [(entry.winner_in_ten, entry.distance), (entry.winner_as_run, entry.distance_as_run)]
    return [str(entry.problems), *picks, *(text for each in places for text in (_percent(each[0]), share(each[1])))]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
