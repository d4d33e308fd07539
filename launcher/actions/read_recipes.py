"""``launch recipe list``, ``show`` and ``lock``: recipes and locks as they are read."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from launcher import backends
from launcher.actions.asking import Asked, assessed, composed, folder, measured
from launcher.actions.output import Output
from launcher.base import machine
from launcher.base.errors import ConfigErrors
from launcher.base.terminal import pasteable, width
from launcher.base.units import gib
from launcher.config import recipes
from launcher.config.catalog import Catalog
from launcher.config.recipes import Recipe
from launcher.config.request import request
from launcher.preflight import assess
from launcher.preflight.assess_here import Judging
from launcher.preflight.plan import plan
from launcher.rundir import lock, losses
from launcher.rundir.record import job_as_dict
from launcher.spec import RunSpec

_UNKNOWN = {"model": None, "gpus": None, "strategy": None, "predicted_bytes": None, "verdict": "invalid"}


def show(name: str) -> Output:
    """The overrides that a recipe stands for.

    Raises:
        ConfigErrors: There is no such recipe, or it cannot be read.
    """
    recipe = recipes.load(Catalog(folder=folder()).recipe(name))
    content = {"choose": dict(recipe.choose), "set": dict(recipe.set), "sweep": dict(recipe.sweep)}
    words = [*(["-m"] if recipe.sweep else []), *recipe.overrides(), *recipe.sweeps()]
    source = f"# source: {recipe.source}\n" if recipe.source else ""
    return Output(
        document={"schema": 1, "recipe": {"name": recipe.name, "summary": recipe.summary, **content}},
        text=f"# {recipe.summary}\n{source}launch {pasteable(words)}",
    )


def lock_of(words: Sequence[str], script_args: Sequence[str]) -> Output:
    """The lock of a run with its first losses, or of a command line that was not started yet.

    Args:
        words: A run alone, or overrides.
        script_args: The words after ``--``.
    """
    if len(words) == 1 and "=" not in words[0]:
        from launcher.actions.find_runs import find

        directory = find([words[0]])[0]
        losses.add_losses(directory)
        content = lock.read(directory).content
    else:
        line = Asked(overrides=tuple(words), script_args=tuple(script_args)).command_line()
        found = composed(line, measured(wanted=True))
        planned = plan(assessed(found, Judging()), python=sys.executable)
        content = lock.build(planned, job_as_dict(planned.job), found.overrides)
    rows = content.get("losses") or []
    text = lock.as_text({key: value for key, value in content.items() if key != "losses"}, rows)
    return Output(document={"schema": 1, "recipe": dict(content)}, text=text.removesuffix("\n"))


def listed() -> Output:
    """Every recipe with its model, GPUs, strategy and predicted peak."""
    catalog, facts = Catalog(folder=folder()), machine.facts()
    rows = [_row_of(name, catalog, facts) for name in catalog.groups["recipe"]]
    size = max((len(row["name"]) for row in rows), default=0)
    lines = [f"{'recipe':{size}}  {'GPUs':>4}  {'strategy':26} {'peak':>10}"]
    for row in rows:
        peak = row["verdict"] if row["predicted_bytes"] is None else gib(row["predicted_bytes"])
        lines.append(f"{row['name']:{size}}  {row['gpus'] or '-':>4}  {row['strategy'] or '-':26} {peak:>10}")
        text = row["summary"] if row["reason"] is None else row["reason"]
        lines.append(textwrap.fill(text, width(), initial_indent="    ", subsequent_indent="    "))
    return Output(document={"schema": 1, "recipe": rows}, text="\n".join(lines))


def _row_of(name: str, catalog: Catalog, facts: machine.Machine) -> dict[str, Any]:
    """The row of a recipe; a broken one has its reason in it."""
    try:
        return _row(recipes.load(catalog.recipe(name)), catalog, facts)
    except ConfigErrors as error:
        reason = "; ".join(f"{each.where}: {each.rule}" for each in error.errors)
        return {"name": name, "summary": "", "sweep": [], **_UNKNOWN, "reason": reason}


def _row(recipe: Recipe, catalog: Catalog, facts: machine.Machine) -> dict[str, Any]:
    found = request([f"recipe={recipe.name}"], catalog=catalog, facts=facts)
    row = {"name": recipe.name, "summary": recipe.summary, "sweep": sorted(recipe.sweep)}
    if found.spec is None:
        raise ConfigErrors(found.errors)
    spec, judged = found.spec, assess.assess(found.spec, earlier=found.errors, search=None)
    return {
        **row,
        "model": spec.model.name,
        "gpus": spec.gpus,
        "strategy": strategy(spec),
        "predicted_bytes": None if judged.estimate is None else judged.estimate.peak.allocated_bytes,
        "verdict": judged.verdict.name,
        "reason": None,
    }


def strategy(spec: RunSpec) -> str:
    """The engine, adapter and degrees of a run in a few words: ``megatron tp8 pp4 dp2``."""
    degrees = {"tp": spec.world.tensor, "pp": spec.world.pipeline, "cp": spec.world.context, "ep": spec.world.expert}
    parts = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    adapter = [spec.adapter.name] if spec.adapter.name != "none" else []
    engine = spec.parallel.name if backends.of(spec).profile.told_by_preset else spec.backend.name
    return " ".join([engine, *adapter, *parts, *([f"dp{spec.world.data}"] if spec.world.data > 1 else [])])
