"""The timeline of a run: attempts as bars, events as points, slow ranks, and tables of them."""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.base import files, typed
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.units import duration
from launcher.charts.bars import Segment, bars
from launcher.charts.html import Cell, Html, details, table, tag
from launcher.charts.library import CATEGORIES, LIMIT, nominal, quantitative
from launcher.charts.page import Chart, Section
from launcher.job.events import MILESTONES
from launcher.views.page.source import Source

_COLOURS = {"waiting": "#b3b3b3", "starting": "#f2b25c", "training": "#0072b2"}
_POINTS = {
    "save": ("#009e73", "circle"), "hang": (LIMIT, "cross"), "straggler": ("#e69f00", "triangle-up"),
    "spike": ("#cc79a7", "diamond"), "rollback": ("#cc79a7", "triangle-left"), "restart": ("#d55e00", "triangle-right"),
    "memory_growth": ("#e69f00", "square"), "profile": ("#56b4e9", "diamond"),
    "bad_rows": ("#e69f00", "diamond"), "finished": ("#009e73", "square"),
    "failed": (LIMIT, "square"), "cancelled": ("#808080", "square"), "requeued": ("#d55e00", "square"),
    "skipped": ("#e69f00", "circle"), "patience": ("#56b4e9", "square"),
}  # fmt: skip
"""Colour and shape of each kind of event; either one identifies it."""

_MOST = 400  # Most events drawn and listed; further saves are left out.
_STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 604_800)
_TICKS = 10  # Spacing of tick marks in seconds, and the most of them.
_SLOW = 16  # Most ranks whose own work is listed, slowest first.


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of the job."""

    number: int  # Counted from 1.
    waiting: float | None = None  # Submission or requeue time; None when unknown.
    begun: float | None = None  # Start on its first node.
    trained: float | None = None  # Start of its ranks.
    stepped: float | None = None  # Start of its first step, from its first line of metrics.
    ended: float | None = None  # End; None while it runs, or when the end was not recorded.
    nodes: tuple[str, ...] = ()  # Its nodes.
    events: tuple[JsonObject, ...] = ()  # Its events.

    @property
    def name(self) -> str:
        """The name of its row."""
        few = ", ".join(self.nodes[:2]) + (f" and {len(self.nodes) - 2} more" if len(self.nodes) > 2 else "")
        return f"attempt {self.number}" + (f" on {few}" if few else "")


def section(source: Source) -> Section:
    """The timeline, the list of events, and the slow ranks."""
    tried = [_with_first_step(each, source.rows) for each in attempts(source.events)]
    parts: list[Chart | Html | str] = []
    if tried and any(attempt.begun or attempt.trained for attempt in tried):
        parts.append(_chart(source, tried))
    elif source.events or source.rows:
        text = "The times of its attempts are unknown: its events do not record them, or it has not started."
        parts.append(tag("p", text, class_="missing"))
    else:
        parts.append(tag("p", "The run has no events yet.", class_="missing"))
    if source.events:
        parts.append(_list(source, tried))
    return Section(identity="story", title="Timeline", parts=[*parts, *_ranks(source)])


def attempts(events: Sequence[JsonObject]) -> list[Attempt]:
    """The attempts of a run, from its events."""
    found: list[Attempt] = []
    for event in events:
        when, kind = event.get("time"), event["kind"]
        if not typed.is_number(when):
            continue
        ended = found[-1].ended if found else None
        if kind == "queued" or not found or (ended is not None and kind in ("running", "start")):
            found.append(Attempt(number=len(found) + 1, waiting=when if kind == "queued" else ended))
        found[-1] = replace(_with(found[-1], kind, event, when), events=(*found[-1].events, event))
    return found


def _with(attempt: Attempt, kind: str, event: JsonObject, when: float) -> Attempt:
    nodes = event.get("nodes")
    if kind == "running" and attempt.begun is None:
        node = event.get("node")
        return replace(attempt, begun=when, nodes=attempt.nodes or ((node,) if isinstance(node, str) else ()))
    if kind == "start":
        named = tuple(map(str, nodes)) if isinstance(nodes, list) else attempt.nodes
        return replace(attempt, begun=attempt.begun or when, trained=when, nodes=named)
    if kind == "end":
        return replace(attempt, ended=when)
    return attempt


def _with_first_step(attempt: Attempt, rows: Sequence[JsonObject]) -> Attempt:
    start = attempt.trained if attempt.trained is not None else attempt.begun
    if start is None:
        return attempt
    for row in rows:
        when = row.get("time")
        if typed.is_number(when) and when >= start and (attempt.ended is None or when <= attempt.ended):
            seconds = row.get("step_seconds")
            return replace(attempt, stepped=max(start, when - (seconds if typed.is_number(seconds) else 0.0)))
    return attempt


def _chart(source: Source, tried: Sequence[Attempt]) -> Chart:
    until = _last_time(source, tried)
    start = min(moment for each in tried for moment in (each.waiting, each.begun, each.trained) if moment is not None)
    width = max(until - start, 1.0)
    pieces = [piece for each in tried for piece in _pieces(each, until, last=each is tried[-1])]
    spec = bars(
        pieces,
        _COLOURS,
        title=f"time of day, from {_clock(start)}",
        start=1000 * (start - width / 50),
        top=1000 * (until + width / 50),
        labels=_labels(width),
        ticks=[1000 * moment for moment in _ticks(start, until)],
    )
    if points := _points(tried):
        spec["layer"].append(_drawn(points))
    said = (f"{each.name}: {_told(each)}" for each in tried)
    return Chart(title="Attempts", spec=spec, said=f"A bar for each attempt. {'; '.join(said)}.")


def _labels(width: float) -> str:
    form = "%H:%M:%S" if width < 600 else "%H:%M" if width < 86_400 else "%d %b %H:%M"
    return f"timeFormat(datum.value, '{form}')"


def _ticks(start: float, until: float) -> list[float]:
    """Round tick times between two moments, in local time."""
    step = next((each for each in _STEPS if (until - start) / each <= _TICKS), _STEPS[-1])
    first = -(-(start - time.timezone) // step) * step + time.timezone
    return [first + number * step for number in range(int((until - first) // step) + 1)]


def _told(attempt: Attempt) -> str:
    ended = next((_what(event) for event in reversed(attempt.events) if event["kind"] == "end"), None)
    begun, end = attempt.begun, attempt.ended
    took = f" after {duration(end - begun)}" if begun is not None and end is not None and end >= begun else ""
    return f"{ended or 'not ended'}{took}"


def _what(event: JsonObject) -> str:
    return str(event.get("state") if event["kind"] == "end" else event["kind"])


def _last_time(source: Source, tried: Sequence[Attempt]) -> float:
    """The end of a run: now while it runs, and the last line of metrics for a lost one."""
    ended = [event["time"] for each in tried for event in each.events]
    lines = [row["time"] for row in source.rows[-1:] if typed.is_number(row.get("time"))]
    now = [time.time()] if source.state.state in ("running", "queued", "requeued") else []
    return float(max([*ended, *lines, *now]))


def _pieces(attempt: Attempt, until: float, *, last: bool) -> Iterator[Segment]:
    spans = {
        "waiting": (attempt.waiting, attempt.begun or attempt.ended),
        "starting": (attempt.begun, attempt.stepped or attempt.ended),
        "training": (attempt.stepped, attempt.ended),
    }
    for name, (start, end) in spans.items():
        if start is None:
            continue
        end = end if end is not None else until if last else start
        if end > start:
            hover = {"": name, "since": _clock(start), "until": _clock(end), "took": duration(end - start)}
            yield Segment(row=attempt.name, name=name, start=1000 * start, end=1000 * end, label=name, hover=hover)


def _points(tried: Sequence[Attempt]) -> list[JsonObject]:
    known = [(each.name, event) for each in tried for event in _chosen(each.events) if _what(event) in _POINTS]
    return [
        {"row": name, "at": 1000 * event["time"], "what": _what(event), "when": _clock(event["time"])}
        | {"said": event["text"]}
        for name, event in known
    ]


def _drawn(points: Sequence[JsonObject]) -> JsonObject:
    names = [name for name in _POINTS if any(point["what"] == name for point in points)]
    looks = {}
    for channel, place in (("shape", 1), ("fill", 0)):
        scale = {"domain": names, "range": [_POINTS[name][place] for name in names]}
        looks[channel] = nominal("what", title=None, legend={"orient": "top"}, scale=scale)
    return {
        "data": {"values": list(points)},
        "mark": {"type": "point", "size": 90, "filled": True, "opacity": 1, "stroke": "#ffffff", "strokeWidth": 0.8},
        "encoding": {
            "y": nominal("row", sort=None, title=None),
            "x": quantitative("at"),
            **looks,
            "tooltip": [nominal(name) for name in ("what", "when", "said")],
        },
    }


def _chosen(events: Sequence[JsonObject]) -> list[JsonObject]:
    saves = [event for event in events if event["kind"] == "save"]
    step = max(1, -(-len(saves) // _MOST))
    kept = {id(event) for event in (*saves[::step], *saves[-1:])}
    return [event for event in events if event["kind"] != "save" or id(event) in kept]


def _list(source: Source, tried: Sequence[Attempt]) -> Html:
    numbers = {id(event): each.number for each in tried for event in each.events}
    chosen = _chosen(source.events)[-_MOST:]
    rows = [
        (
            _clock(event.get("time")),
            _what(event).replace("_", " "),
            numbers.get(id(event), ""),
            event.get("node") or event.get("host") or "",
            "" if event.get("step") is None else str(event["step"]),
            Cell(event["text"], wide=True),
        )
        for event in chosen
    ]
    heads = ["when", "what", "attempt", "node", "step", "in words"]
    left_out = len(source.events) - len(chosen)
    note = f" ({left_out} more are in events.jsonl)" if left_out else ""
    noteworthy = any(event["kind"] not in MILESTONES for event in chosen)
    return details(f"the events in words{note}", table(heads, rows, identity="events"), opened=noteworthy)


def _clock(when: object) -> str:
    if not typed.is_number(when):
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


def _ranks(source: Source) -> Iterator[Chart | Html | str]:
    slow = [event for event in source.events if event["kind"] == "straggler"]
    for event in slow[-5:]:
        yield tag("p", str(event["text"]), class_="" if event.get("over") else "warn")
    lines = _rank_seconds(source)
    width = max((len(line) for line in lines), default=0)
    if width < 2:
        return
    medians = {rank: statistics.median(line[rank] for line in lines if len(line) > rank) for rank in range(width)}
    middle = statistics.median(medians.values())
    texts = {
        rank: f"{seconds:.4g} s" + (f", {seconds / middle - 1:+.0%} of the median" if middle else "")
        for rank, seconds in medians.items()
    }
    shown = sorted(medians, key=lambda rank: -medians[rank])[:_SLOW]
    pieces = [_own_work(rank, medians[rank]) for rank in shown]
    few = f" Of {width} ranks the {_SLOW} slowest are shown." if width > _SLOW else ""
    ends, colours = {(f"rank {rank}", ""): texts[rank] for rank in shown}, {"own work": CATEGORIES[0]}
    top = 1.4 * max(medians.values()) or 1.0
    yield Chart(
        title="Each rank's own work in a step",
        spec=bars(pieces, colours, title="seconds, median of all lines", top=top, ends=ends),
        said=f"Seconds of each rank's own work in a step; rank {shown[0]} takes {texts[shown[0]]}.",
        note="" if slow else f"No rank was slow.{few}",
    )


def _own_work(rank: int, seconds: float) -> Segment:
    hover = {"rank": str(rank), "seconds": f"{seconds:.4g}"}
    return Segment(row=f"rank {rank}", name="own work", start=0, end=seconds, hover=hover)


def _rank_seconds(source: Source) -> list[list[float]]:
    found = (row.get("seconds") for row in files.json_lines(source.folder / "rank_times.jsonl"))
    return [line for line in found if isinstance(line, list) and all(map(typed.is_number, line))]
