"""The table of frameworks: product names without a release, and how each executes a step (``frameworks.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from launcher.estimate.rank.engine import Execution

type Engine = Literal["fsdp", "deepspeed", "megatron"]

TABLE = Path(__file__).with_name("frameworks.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One line of the table.

    Attributes:
        name: The product's name without its release.
        matches: The words of a file's column, as a pattern of its beginning.
        family: The only source of which the line is; None is any.
        engine: Our backend that is nearest in what a rank holds.
        sequence: True if norms are split over the tensor parallel ranks where there are some.
        settings: Further overrides that its documents say.
        blank: What its documents say of a column that a row leaves blank.
        execution: Its way to execute a step.
        sources: Where that is read, feature by feature.
        plain_modules: True if its model is torch's own modules, which save what no kernel of the row fuses, and its
            loss is torch's on whole logits: its memory is not that of the engine's modules.
        fitted: Features whose numbers were chosen on measured rows that are scored.
    """

    name: str
    matches: str
    engine: Engine
    execution: Execution
    family: str | None = None
    sequence: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    blank: Mapping[str, str]
    sources: Mapping[str, str]
    plain_modules: bool = False
    fitted: tuple[str, ...] = ()

    def __hash__(self) -> int:
        """By its line in the table."""
        return hash((self.name, self.matches, self.family))


@cache
def table() -> tuple[Framework, ...]:
    """All lines, in the order in which they are tried."""
    return tuple(_framework(entry) for entry in yaml.safe_load(TABLE.read_text())["frameworks"])


@cache
def find(product: str, family: str) -> Framework | None:
    """The first line for a product as a file names it."""
    for framework in table():
        if framework.family in (None, family) and re.match(framework.matches, product):
            return framework
    return None


def named(name: str) -> Framework:
    """The first line of a name."""
    return next(framework for framework in table() if framework.name == name)


def _framework(entry: Mapping[str, Any]) -> Framework:
    related = tuple(entry["execution"].get("related", ()))
    features = Execution(framework=entry["name"], **{**entry["execution"], "related": related})
    sources = {name: text for names, text in entry["sources"].items() for name in names.split()}
    return Framework(**{**entry, "execution": features, "sources": sources, "fitted": tuple(entry.get("fitted", ()))})
