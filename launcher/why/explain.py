"""``launch why``: answers for a run in any state, and for the runs of a sweep."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from launcher.base.units import duration, steps
from launcher.job import events
from launcher.rundir import health
from launcher.rundir.state import NOT_SUBMITTED
from launcher.why import endings, out_of_memory
from launcher.why.answer import Answer, Evidence, WayOut
from launcher.why.subject import Subject, subject
from launcher.why.ways_out import Takes


def explain(run: Path, folder: Path, takes: Takes | None = None) -> Answer:
    """Why a run ended, or its present state if it has not. ``takes`` says which words a resumed run accepts."""
    found = subject(run, folder, takes)
    answer = _answer(found)
    return replace(answer, earlier=tuple(earlier_ends(run, ended=found.row.state not in ("running", "queued"))))


def _answer(run: Subject) -> Answer:
    word = run.row.state
    if word == "failed" and run.reason.startswith("its submission failed"):
        way = run.resume(text="submits it again, with other settings if you add them")
        found = run.evidence_of(NOT_SUBMITTED, run.reason)
        return run.answer("error", [run.reason], evidence=tuple(found), ways=(way,))
    if word in ("failed", "lost", "not_visible", "unreadable"):
        oom = out_of_memory.ran_out(run) if word in ("failed", "lost") else None
        return endings.answer(run) if oom is None else out_of_memory.answer(run, oom)
    if word == "requeued":
        return endings.answer(run)
    return _running(run) if word == "running" else _at_rest(run)


def _at_rest(run: Subject) -> Answer:
    word, now = run.row.state, run.row.progress
    reason = f": {run.reason}" if run.reason else ""
    if word == "finished":
        done = "" if now.step is None else f" after {steps(now.step)}"
        return run.answer("none", [f"nothing went wrong: it finished{done}{reason}"])
    if word == "cancelled":
        said = f"the user stopped it, and nothing went wrong{reason}"
        return run.answer("none", [said], ways=(run.resume(text=run.from_here()),))
    way = run.resume(text="submits it")
    return run.answer("none", [f"nothing went wrong: it is {word}{reason}"], ways=(way,) if word == "prepared" else ())


def _running(run: Subject) -> Answer:
    now = run.row.progress
    of = "" if now.step is None else f" in step {now.step}" + ("" if now.steps is None else f" of {now.steps}")
    said, found, ways, pile = [f"nothing has gone wrong: it is running{of}"], list[Evidence](), list[WayOut](), None
    for line in health.now(run.run):
        said.append(str(line["text"]))
        kind = line["kind"]
        found += run.evidence_in(events.FILE, rf'"kind": "{kind}"')
        if kind == "hang":
            ways.append(WayOut(command=shlex.join(["launch", "logs", run.name]), text="the stacks of all ranks"))
        if kind == "memory_growth" and isinstance(line.get("pile"), str):
            pile = str(line["pile"])
    return run.answer("none", said, pile=pile, evidence=found, ways=ways)


def earlier_ends(run: Path, *, ended: bool) -> Iterator[str]:
    """How earlier attempts ended, oldest first; without the newest if the run has ``ended``."""
    attempts: dict[int, str] = {}
    began: float | None = None
    number = 0
    for line in events.read(run):
        if line["kind"] in ("start", "restart"):
            began, number = _time(line), number + 1
        elif line["kind"] == "end":
            lasted = "" if began is None or _time(line) < began else f" after {duration(_time(line) - began)}"
            word, text = line.get("state"), line["text"]
            attempts[max(1, number)] = f"{word}{lasted}" + ("" if text == word else f": {text}")
    if ended and attempts:
        attempts.pop(max(attempts))
    for each, text in attempts.items():
        yield f"attempt {each}: {text}"


def _time(line: dict[str, object]) -> float:
    value = line.get("time")
    return float(value) if isinstance(value, int | float) else 0.0
