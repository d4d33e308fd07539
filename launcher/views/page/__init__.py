"""The page of one run: settings, prediction and measurement, events, and how it ended."""

from collections.abc import Iterator
from pathlib import Path

from launcher.base import package, typed
from launcher.base.units import duration, gib
from launcher.charts.html import Html, items, joined, tag
from launcher.charts.page import Section, page
from launcher.preflight.verdict import judge
from launcher.rundir import health, results
from launcher.views.check.sentences import answer, reason
from launcher.views.page import asked, curves, memory, speed, story
from launcher.views.page.source import Source, read
from launcher.why.explain import explain
from launcher.why.ways_out import Takes

_WORDS = {"fits": "good", "tight": "warn", "does_not_fit": "bad", "invalid": "bad"}
_ENDED = {"finished": "has finished", "failed": "has failed", "cancelled": "was cancelled"}
_STATES = {"finished": "good", "failed": "bad", "lost": "bad", "unreadable": "bad"}


def of_run(folder: Path, takes: Takes | None = None) -> str:
    """The page of the run in a folder, even if incomplete; ``takes`` tells which overrides a resumed run accepts."""
    source = read(folder)
    sections = [
        *(part.section(source) for part in (asked, memory, speed, curves, story)),
        Section(identity="end", title="How it ended", parts=list(_end(source, takes))),
        asked.made_of(source),
    ]
    return page(f"Run {source.state.id}", joined(*_lead(source)), sections)


def _lead(source: Source) -> Iterator[Html]:
    now = source.state
    word = tag("span", now.state, class_=_STATES.get(now.state, ""))
    steps = "" if now.progress.step is None else f", step {now.progress.step:,}"
    steps += f" of {now.progress.steps:,}" if steps and now.progress.steps is not None else ""
    loss = f", loss {results.closing_loss(source.rows)}" if source.rows else ""
    yield tag("p", word, steps, loss, f"; {now.reason}" if now.reason else "")
    yield tag("p", *_verdict(source))
    left = now.progress.seconds_left
    if now.state == "running" and left is not None:
        yield tag("p", f"About {duration(left)} left.")
    if source.damage:
        yield tag("p", "Parts of the record cannot be read:", class_="bad")
        yield items(source.damage)
    yield tag("p", tag("code", str(source.folder)), f", made by launch {package.__version__}", class_="note")


def _verdict(source: Source) -> Iterator[Html | str]:
    name = source.plan.get("verdict")
    if name == "unknown" or (source.spec is not None and source.spec.judges_no_model):
        yield "A script without a named model: the check judges its settings, not its memory."
    elif not isinstance(name, str):
        yield "The verdict of the check is not recorded."
    else:
        yield tag("span", f"The check said {name.replace('_', ' ').upper()}", class_=_WORDS.get(name, ""))
        if source.predicted is not None and source.spec is not None:
            estimate = source.predicted.estimate
            judged = judge(source.spec, estimate)
            yield f"; by this version {answer(source.spec, judged, estimate)}. {reason(source.spec, judged, estimate)}"
        elif typed.is_whole(size := (source.plan.get("peak") or {}).get("needed_bytes")):
            yield f"; predicted to need {gib(size)}."


def _end(source: Source, takes: Takes | None) -> Iterator[Html | str]:
    now = source.state
    yield f"It {_ENDED.get(now.state, f'is {now.state}')}{': ' + now.reason if now.reason else '.'}"
    if now.state in ("failed", "lost", "requeued"):
        yield from _why(source, takes)
    for event in health.now(source.folder):
        yield tag("p", str(event["text"]), class_="warn")
    saved = results.newest_checkpoint(source.folder)
    yield "There is no checkpoint." if saved is None else f"The newest checkpoint is of step {saved:,}."


def _why(source: Source, takes: Takes | None) -> Iterator[Html | str]:
    found = explain(source.folder, Path.cwd(), takes)
    yield from (tag("p", sentence, class_="bad" if number == 0 else "") for number, sentence in enumerate(found.said))
    if found.evidence:
        places = [each.file if each.line is None else f"{each.file}:{each.line}" for each in found.evidence]
        yield items(f"{place}: {each.text}" for place, each in zip(places, found.evidence, strict=True))
    if found.ways:
        yield tag("p", found.ways_title.capitalize())
        yield items(joined(tag("code", way.command), f" {way.text}" if way.text else "") for way in found.ways)
