"""Published layouts beside the planner's best: ``python -m benchmarks.known_layouts [--data DIR] [NAME ...]``.

Each training of ``published_layouts.yaml`` is planned three times: with all that its source states of the layout, with
only its engine, and with only the model and the cluster. The first speed over the second, both by the planner's own
estimate, shows how far the planner is from the choice of people who had the cluster: 0.92 or more is near, and
``benchmarks/results/known_layouts.md`` explains lower values. With measured files (``--data``) a layout is also
compared with its row; the row itself is not kept. NAME: only trainings whose name contains the word; figures of the
others stay.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from csv import DictReader
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.reporting import RESULTS, keep
from launcher.base import machine
from launcher.base.errors import ConfigErrors
from launcher.base.units import GIB
from launcher.config.catalog import Catalog
from launcher.estimate.speed.result import SpeedEstimate
from launcher.planner.judge import Preflight
from launcher.planner.planning import plan
from launcher.planner.question import Question, ask
from launcher.spec import RunSpec

TABLE = Path(__file__).with_name("published_layouts.yaml")

NEAR = 0.92
"""Share of the best layout's speed from which on a published one is said to be reproduced (issue: within 8%)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One training whose layout is published.

    Attributes:
        name: The model and its GPUs.
        source: Where the layout is stated.
        question: What was trained on what.
        engine: The words for the engine that is nearest to theirs.
        layout: What the source states of the layout.
        measured: What it prints of the speed: ``step_seconds``, ``mfu`` or
            ``tokens_per_second_per_gpu``; empty where it prints none.
        row: The id of the run in ``throughput.csv``; empty where that has none.
        because: Why the planner's best is faster by more than 8%; empty where it is not.
    """

    name: str
    source: str
    question: tuple[str, ...]
    engine: tuple[str, ...]
    layout: tuple[str, ...]
    measured: Mapping[str, float]
    row: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The fastest layout for some words, or the run as typed where none fits.

    Attributes:
        words: The words that choose it, without the question's.
        fits: True if its device memory is enough for certain.
        used_gib: What the fullest GPU needs.
        speed: The prediction.
        seconds: How long the search took.
    """

    words: tuple[str, ...]
    fits: bool
    used_gib: float
    speed: SpeedEstimate
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One published layout beside the planner's best with its engine and with any."""

    published: Published
    own: Answer
    best: Answer
    best_open: Answer
    measured: float | None

    @property
    def share(self) -> float:
        """Predicted speed of the published layout over that of the best with its engine."""
        return self.own.speed.tokens_per_second / self.best.speed.tokens_per_second


def table() -> tuple[Published, ...]:
    """All published layouts."""
    return tuple(_published(entry) for entry in yaml.safe_load(TABLE.read_text())["layouts"])


def _published(entry: Mapping[str, Any]) -> Published:
    return Published(
        name=entry["name"],
        source=entry["source"],
        question=tuple(entry["question"].split()),
        engine=tuple(entry["engine"].split()),
        layout=tuple(entry["layout"].split()),
        measured=entry.get("measured", {}),
        row=entry.get("row", ""),
        because=entry.get("because", ""),
    )


def compared(published: Published, rows: Mapping[str, float]) -> Compared:
    """Ask the planner about one training.

    Args:
        published: The training.
        rows: Measured tokens a second and GPU by the id of a run.
    """
    own = answer((*published.question, *published.engine, *published.layout))
    return Compared(
        published=published,
        own=own,
        best=answer((*published.question, *published.engine)),
        best_open=answer(published.question),
        measured=_measured(published, own.speed, rows),
    )


def answer(words: Sequence[str]) -> Answer:
    """The planner's best; where nothing fits, the run of the words as they are."""
    question = ask(words, catalog=Catalog(folder=TABLE.parent), facts=machine.facts())
    found = plan(question)
    if found.layouts:
        first = found.layouts[0]
        spec, chosen, fits = first.spec, first.overrides, True
    else:
        spec, chosen, fits = _as_typed(question), (), False
    judge = Preflight()
    verdict = judge.verdict(spec)
    speed = judge.speed(spec, verdict)
    assert speed is not None, "the speed of every GPU and engine of the table is known"
    used = (verdict.used_bytes or 0) / GIB
    return Answer(words=chosen, fits=fits, used_gib=used, speed=speed, seconds=found.seconds)


def _as_typed(question: Question) -> RunSpec:
    errors = []
    for opening in question.openings:
        found = [*Preflight().errors(opening.spec)]
        if not found:
            return opening.spec
        errors += found
    raise ConfigErrors(errors)


def _measured(published: Published, speed: SpeedEstimate, rows: Mapping[str, float]) -> float | None:
    """Measured tokens a second and GPU."""
    if "step_seconds" in published.measured:
        return speed.tokens / published.measured["step_seconds"] / speed.gpus
    if "mfu" in published.measured:
        return speed.tokens_per_second_per_gpu * published.measured["mfu"] / speed.mfu
    return published.measured.get("tokens_per_second_per_gpu", rows.get(published.row))


def _rows(folder: Path | None) -> dict[str, float]:
    if folder is None:
        return {}
    with (folder / "throughput.csv").open() as file:
        return {row["id"]: float(row["tokens_s_gpu"]) for row in DictReader(file) if row["tokens_s_gpu"]}


def figures(found: Compared) -> dict[str, Any]:
    """What is kept of one training."""
    own, best, anyone = found.own, found.best, found.best_open
    return {
        "name": found.published.name,
        "source": found.published.source,
        "share_of_best": round(found.share, 3),
        "share_of_best_of_any_engine": round(own.speed.tokens_per_second / anyone.speed.tokens_per_second, 3),
        "measured_over_predicted": found.measured and round(found.measured / own.speed.tokens_per_second_per_gpu, 3),
        "published": _figures(own, found.published.layout),
        "best": _figures(best, ()),
        "best_of_any_engine": _figures(anyone, ()),
    }


def _figures(answer: Answer, stated: Sequence[str]) -> dict[str, Any]:
    return {
        "overrides": [*stated, *answer.words],
        "fits": answer.fits,
        "used_gib": round(answer.used_gib, 1),
        "tokens_per_second_per_gpu": round(answer.speed.tokens_per_second_per_gpu, 1),
        "mfu": round(answer.speed.mfu, 3),
    }


def lines(found: Compared) -> Iterator[str]:
    """One training, printed."""
    own, best, anyone = found.own, found.best, found.best_open
    verdict = "near" if found.share >= NEAR else "explained" if found.published.because else "FAR"
    yield f"{found.published.name}: {found.share:.0%} of the best with its engine, {verdict}"
    measured = "" if found.measured is None else f", measured {found.measured:,.0f}"
    yield f"  published    {_line(own)}{measured}"
    yield f"  best         {_line(best)}"
    yield f"  any engine   {_line(anyone)}"


def _line(answer: Answer) -> str:
    fits = "" if answer.fits else ", DOES NOT FIT"
    speed = f"{answer.speed.tokens_per_second_per_gpu:>8,.0f} tokens/s a GPU, MFU {answer.speed.mfu:.0%}"
    return f"{speed}, {answer.used_gib:.1f} GiB{fits}, {answer.seconds:.0f} s: {' '.join(answer.words)}"


def main() -> None:
    """Compare, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only trainings whose name contains the word")
    parser.add_argument("--data", type=Path, help="a folder with throughput.csv")
    options = parser.parse_args()
    rows = _rows(options.data)
    for published in table():
        if options.names and not any(name in published.name for name in options.names):
            continue
        found = compared(published, rows)
        print("\n".join(lines(found)), flush=True)
        _keep(figures(found))


def _keep(found: Mapping[str, Any]) -> None:
    """Put the figures of one training in the place of those that are kept of it."""
    path = RESULTS / "known_layouts.json"
    old = json.loads(path.read_text())["figures"]["layouts"] if path.exists() else []
    by_name = {row["name"]: row for row in (*old, found)}
    layouts = [by_name[published.name] for published in table() if published.name in by_name]
    keep("known_layouts", "python -m benchmarks.known_layouts --data DIR", {"layouts": layouts}, printed=False)


if __name__ == "__main__":
    main()
