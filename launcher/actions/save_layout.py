"""``launch plan --save NAME``: the first layout as a recipe that says its question and its prediction."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime

from launcher.actions import recipes
from launcher.actions.plan_requests import PlanRequest
from launcher.base.errors import SubmitError
from launcher.base.package import __version__
from launcher.base.terminal import say
from launcher.base.units import gib, rounded
from launcher.planner.layouts import Layout, Plan
from launcher.planner.question import Question


def free_name(name: str) -> str:
    """A recipe's name without its suffix; raises ConfigErrors where it is none, SubmitError where it is taken."""
    name = name.removesuffix(".yaml")
    recipes.require_name("--save", name, "--save my_recipe")
    path = recipes.place(name)
    if os.path.lexists(path):
        raise SubmitError(f"{path} exists and is not overwritten: choose another name")
    return name


def save(request: PlanRequest, question: Question, found: Plan) -> dict[str, str] | None:
    """Write the first layout, and say where; its path and use as ``recipe save --json`` has them; None without one.

    Raises ConfigErrors where the words hold a secret, SubmitError where it cannot be written.
    """
    if request.save is None:
        return None
    if not (found.layouts and found.finished):
        why = "no layout fits" if found.finished else "the search was interrupted"
        say(f"launch: no recipe is written, as {why}")
        return None
    layout, typed = found.layouts[0], shlex.join(("launch", "plan", *question.words, *_flags(request)))
    spec = layout.spec
    name = f"The best layout of {spec.model.name} on {spec.gpus} x {spec.hardware.title or spec.hardware.name}"
    path = recipes.keep(
        request.save,
        (*question.single, *layout.overrides),
        question.catalog,
        summary=f"{name}; {_prediction_text(layout)}",
        source=f"planned on {datetime.now(UTC).date()} by launch {__version__}: {typed}",
    )
    use = f"launch recipe={request.save}"
    say(f"launch: the first layout is in {path}: `{use}` starts it")
    return {"path": str(path), "use": use}


def _flags(request: PlanRequest) -> Iterator[str]:
    yield from (f"--vary={group}" for group in request.vary)
    yield from ("--unmeasured",) if request.unmeasured else ()
    yield from ("--smallest",) if request.smallest else ()
    for name in ("largest", "days"):
        if (value := getattr(request, name)) is not None:
            yield f"--{name}={value}"


def _prediction_text(layout: Layout) -> str:
    speed, verdict = layout.speed, layout.verdict
    parts = ["speed not predicted"]
    if speed is not None:
        band = f" ({rounded(speed.low)} to {rounded(speed.high)})" if speed.constant.rows else ""
        parts = [f"predicted {rounded(speed.tokens_per_second_per_gpu)} tokens/s a GPU{band}"]
    if verdict.used_bytes is not None:
        of = "" if verdict.capacity_bytes is None else f" of {gib(verdict.capacity_bytes)}"
        parts.append(f"{gib(verdict.used_bytes)}{of} on the fullest rank")
    return ", ".join(parts)
