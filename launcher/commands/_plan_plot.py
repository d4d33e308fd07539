"""``launch plan --plot FILE``: the searches for less memory, and their figure."""

from __future__ import annotations

from pathlib import Path

from launcher import backends
from launcher.actions import layout_search
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import say
from launcher.estimate.speed.estimate import unknown
from launcher.planner.question import Question
from launcher.planner.result import Plan
from launcher.preflight.measured.known import Measured


def require(path: Path, question: Question) -> None:
    """Refuse a figure that cannot be made, before anything is searched.

    Raises:
        ConfigErrors: Its name, a library that lacks, or speeds that are not known.
    """
    from launcher.charts import figure

    figure.check_path(path)
    spec = question.openings[0].spec
    why = unknown(spec, backends.of(spec))
    if why is not None:
        rule = f"it draws speed against memory, and no speed is known here: {why}"
        raise ConfigErrors([ConfigError("--plot", str(path), rule, ["hardware=h100_80g"])])


def draw(path: Path, question: Question, found: Plan, measured: Measured | None) -> None:
    """Search for less memory, and draw."""
    from launcher.planner.frontier import frontier
    from launcher.views.plan import plot

    with layout_search.shown() as show:
        layouts = frontier(question, found, measured=measured, progress=show)
    plot.write(path, layouts)
    say(f"launch: the figure is in {path}")
