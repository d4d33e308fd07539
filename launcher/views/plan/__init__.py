"""A plan as the Python API returns it: as text, as the document of ``plan --json``, and as a notebook cell."""

from dataclasses import fields
from typing import Any

from launcher.base.frozen import dataclass
from launcher.base.units import gib, rounded
from launcher.charts.html import tag
from launcher.planner import document, layouts, slower_because, wording
from launcher.planner.document import line
from launcher.planner.layouts import Layout
from launcher.views.plan import table


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(layouts.Plan):
    """The answer of ``launcher.plan``; ``print`` shows what ``launch plan`` prints."""

    @classmethod
    def of(cls, found: layouts.Plan) -> "Plan":
        """The same answer, with its views."""
        return cls(**{field.name: getattr(found, field.name) for field in fields(found)})

    def as_dict(self) -> dict[str, Any]:
        """The document of ``launch plan --json`` (docs/contract/documents.md)."""
        return document.as_dict(self)

    def as_text(self, width: int = 80) -> str:
        """The text of ``launch plan`` on a terminal of ``width`` columns."""
        return table.text(self, width)

    def __str__(self) -> str:
        return self.as_text()

    def _repr_html_(self) -> str:
        parts: list[object] = [_heading(self), tag("br")]
        for each in self.assumptions:
            parts += ["assumed ", tag("code", each.override), f": {each.why}", tag("br")]
        if self.layouts:
            first = self.layouts[0]
            cells = (
                (str(number), *_cells(each, first)) for number, each in enumerate((*self.layouts, *self.others), 1)
            )
            parts.append(tag("table", _row("th", _HEADS), *(_row("td", row) for row in cells)))
            parts += ["the first: ", tag("code", line(self, first))]
        return tag("div", *parts)


_HEADS = ("", "layout", "tokens/s a GPU", "band", "memory", "of the first", "why it is slower")
_LEFT = "text-align:left"
_RIGHT = "text-align:right;white-space:nowrap"
_STYLES = (_RIGHT, _LEFT, _RIGHT, _RIGHT, _RIGHT, _RIGHT, _LEFT)


def _heading(plan: Plan) -> str:
    counts = plan.counts
    if not plan.layouts:
        return f"No layout fits: of {counts.considered:,}, {counts.invalid:,} invalid and {counts.unfit:,} do not fit."
    spec = plan.layouts[0].spec
    return f"{spec.model.name} on {spec.gpus} x {spec.hardware.title}: the best of {counts.considered:,} layouts"


def _row(kind: str, cells: tuple[str, ...]) -> str:
    return tag("tr", *(tag(kind, cell, style=style) for cell, style in zip(cells, _STYLES, strict=True)))


def _cells(layout: Layout, first: Layout) -> tuple[str, ...]:
    speed, used = layout.speed, layout.verdict.used_bytes
    lost = None if layout is first else slower_because.loss(layout, first)
    return (
        wording.layout(layout.spec),
        "-" if speed is None else rounded(speed.tokens_per_second_per_gpu),
        "-" if speed is None or not speed.constant.rows else f"{rounded(speed.low)} to {rounded(speed.high)}",
        "-" if used is None else gib(used),
        "" if lost is None else f"{1 - lost:.1%}",
        layout.loses,
    )
