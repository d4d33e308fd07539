"""A plan as the Python API gives it: as text, as the document of ``plan --json``, and for notebooks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from launcher.planner import document, result
from launcher.views.plan import html, table


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(result.Plan):
    """The answer of ``launcher.plan``; ``print`` shows what ``launch plan`` prints."""

    @classmethod
    def of(cls, found: result.Plan) -> Plan:
        """The same answer, with its views."""
        return cls(**{field.name: getattr(found, field.name) for field in fields(found)})

    def as_dict(self) -> dict[str, Any]:
        """The document of ``launch plan --json`` (docs/contract.md)."""
        return document.as_dict(self)

    def as_text(self, width: int = 80) -> str:
        """The text of ``launch plan`` on a terminal of ``width`` columns."""
        return table.text(self, width)

    def __str__(self) -> str:
        return self.as_text()

    def _repr_html_(self) -> str:
        """The answer as a notebook shows it."""
        return html.as_html(self)
