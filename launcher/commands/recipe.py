"""List recipes, or show one as the overrides that it stands for.

launch recipe list
launch recipe show NAME
"""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from launcher import machine, preflight, recipes
from launcher.catalog import Catalog
from launcher.commands.common import add_json, folder, print_json, width
from launcher.errors import ConfigError, ConfigErrors
from launcher.parse import closest
from launcher.recipes import Recipe
from launcher.request import request
from launcher.spec import RunSpec
from launcher.units import gib


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("action", choices=("list", "show"))
    parser.add_argument("name", nargs="?", metavar="NAME")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print recipes."""
    catalog = Catalog(folder=folder())
    if options.action == "list":
        return _list(catalog, as_json=options.json)
    if options.name not in catalog.groups["recipe"]:
        near = [f"launch recipe show {name}" for name in closest(str(options.name), catalog.groups["recipe"])]
        raise ConfigErrors([ConfigError("NAME", options.name, "no such recipe", near or ["launch recipe list"])])
    recipe = recipes.load(catalog.recipe(options.name))
    if options.json:
        content = {"choose": dict(recipe.choose), "set": dict(recipe.set), "sweep": dict(recipe.sweep)}
        print_json({"schema": 1, "recipe": {"name": recipe.name, "summary": recipe.summary, **content}})
    else:
        print(f"# {recipe.summary}\n# source: {recipe.source}\nlaunch " + " \\\n  ".join(recipe.overrides()))
    return 0


def _list(catalog: Catalog, *, as_json: bool) -> int:
    """Every recipe with what it trains, on what, how, and the peak that is predicted for it."""
    facts = machine.facts()
    rows = [_row(recipes.load(catalog.recipe(name)), catalog, facts) for name in catalog.groups["recipe"]]
    if as_json:
        print_json({"schema": 1, "recipe": rows})
        return 0
    size = max((len(row["name"]) for row in rows), default=0)
    print(f"{'recipe':{size}}  {'GPUs':>4}  {'strategy':26} {'peak':>10}")
    for row in rows:
        peak = row["verdict"] if row["predicted_bytes"] is None else gib(row["predicted_bytes"])
        print(f"{row['name']:{size}}  {row['gpus'] or '-':>4}  {row['strategy'] or '-':26} {peak:>10}")
        print(textwrap.fill(row["summary"], width(), initial_indent="    ", subsequent_indent="    "))
    return 0


def _row(recipe: Recipe, catalog: Catalog, facts: machine.Machine) -> dict[str, Any]:
    found = request([f"recipe={recipe.name}"], catalog=catalog, facts=facts)
    row = {"name": recipe.name, "summary": recipe.summary, "sweep": sorted(recipe.sweep)}
    nothing = {"model": None, "gpus": None, "strategy": None, "predicted_bytes": None, "verdict": "invalid"}
    if found.spec is None:
        return {**row, **nothing}
    spec, judged = found.spec, preflight.assess(found.spec, earlier=found.errors, search=False)
    return {
        **row,
        "model": spec.model.name,
        "gpus": spec.gpus,
        "strategy": strategy(spec),
        "predicted_bytes": None if judged.estimate is None else judged.estimate.peak.allocated_bytes,
        "verdict": judged.verdict.name,
    }


def strategy(spec: RunSpec) -> str:
    """How a run is laid out, in a few words: ``megatron tp8 pp4 dp2``."""
    degrees = {"tp": spec.world.tensor, "pp": spec.world.pipeline, "cp": spec.world.context, "ep": spec.world.expert}
    parts = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    adapter = [spec.adapter.name] if spec.adapter.name != "none" else []
    engine = spec.backend.name if spec.backend.name == "megatron" else spec.parallel.name
    return " ".join([engine, *adapter, *parts, *([f"dp{spec.world.data}"] if spec.world.data > 1 else [])])
