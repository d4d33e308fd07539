"""Recipes and locks: runs as data that someone else can repeat.

launch recipe list                        all, with GPUs, strategy, memory peak
launch recipe show NAME|PATH              the overrides that it stands for
launch recipe save NAME OVERRIDES...      write recipes/NAME.yaml; by --run RUN
                                          from a run's command line
launch recipe lock RUN|OVERRIDES...       the lock of a run with its first
                                          losses, or of one not yet started
launch recipe verify LOCK [KEY=VALUE...]  run the first steps here and compare
                                          losses; exit 5 where they differ
launch recipe diff A B                    what differs in meaning between two
                                          recipes, locks or runs
launch recipe fetch SOURCE                into recipes/: https://...#sha256=HEX
                                          git+https://HOST/REPO@REVISION#PATH
launch recipe trust FILE                  show what of a recipe, lock or conf/
                                          from elsewhere acts, and trust it;
                                          --origin trusts its repository
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher import backends
from launcher.actions.asking import Asked, assessed, composed, folder, measured
from launcher.actions.output import Output
from launcher.base import machine
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import pasteable, width
from launcher.base.units import gib
from launcher.commands._options import add_json, add_trust, print_json, print_output
from launcher.config import recipes
from launcher.config.catalog import Catalog
from launcher.config.recipes import Recipe
from launcher.config.request import request
from launcher.preflight import assess
from launcher.preflight.judging import Judging
from launcher.preflight.plan import plan
from launcher.rundir import lock, losses
from launcher.rundir.record import job_as_dict
from launcher.spec import RunSpec

_FEWEST = {"list": 0, "show": 1, "save": 1, "lock": 1, "verify": 1, "diff": 2, "fetch": 1, "trust": 0}
_MOST = {"list": 0, "show": 1, "diff": 2, "fetch": 1, "trust": 1}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("action", choices=tuple(_FEWEST), help="what to do, as above")
    parser.add_argument("words", nargs="*", metavar="WORD", help="what the action takes, as above")
    parser.add_argument("--run", metavar="RUN", help="save: the run whose command line becomes the recipe")
    parser.add_argument("--summary", metavar="TEXT", help="save: what the recipe is for, in one line")
    parser.add_argument("--name", metavar="NAME", help="fetch: the name to keep it under")
    parser.add_argument(
        "--steps",
        type=int,
        default=losses.FIRST_LOSSES,
        metavar="N",
        help=f"verify: steps to compare ({losses.FIRST_LOSSES})",
    )
    words = "trust: all files of the repository that FILE, or else the working folder, lies in"
    parser.add_argument("--origin", action="store_true", help=words)
    add_trust(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Call the action with its words."""
    action, words = options.action, options.words
    if not _FEWEST[action] <= len(words) <= _MOST.get(action, len(words)):
        usage = next(line for line in (__doc__ or "").splitlines() if line.startswith(f"launch recipe {action}"))
        raise ConfigErrors([
            ConfigError("recipe", " ".join([action, *words]), f"it is used as: {usage.split('  ')[0]}")
        ])
    if action == "list":
        return _list(Catalog(folder=folder()), as_json=options.json)
    if action in ("show", "lock"):
        return {"show": _show, "lock": _lock}[action](words, options)
    return print_output(_written(action, words, options), as_json=options.json)


def _written(action: str, words: Sequence[str], options: argparse.Namespace) -> Output:
    """The answer of an action that writes, fetches or compares."""
    from launcher.actions import recipes as kept
    from launcher.actions import repeat, trusted_files

    match action:
        case "diff":
            return repeat.difference(*words)
        case "verify":
            return repeat.verify(Path(words[0]), words[1:], steps=options.steps, trusted=options.trust)
        case "save":
            return kept.save(words[0], words[1:], run=options.run, summary=options.summary, trusted=options.trust)
        case "fetch":
            return kept.fetch(words[0], options.name)
        case _:
            return trusted_files.trust_file(words, origin=options.origin)


def _show(words: Sequence[str], options: argparse.Namespace) -> int:
    recipe = recipes.load(Catalog(folder=folder()).recipe(words[0]))
    if options.json:
        content = {"choose": dict(recipe.choose), "set": dict(recipe.set), "sweep": dict(recipe.sweep)}
        print_json({"schema": 1, "recipe": {"name": recipe.name, "summary": recipe.summary, **content}})
    else:
        sweep = ["-m"] if recipe.sweep else []
        words = [*sweep, *recipe.overrides(), *recipe.sweeps()]
        source = f"# source: {recipe.source}\n" if recipe.source else ""
        print(f"# {recipe.summary}\n{source}launch {pasteable(words)}")
    return 0


def _lock(words: Sequence[str], options: argparse.Namespace) -> int:
    """Print a lock: that of a run with its losses, or one of a command line."""
    if len(words) == 1 and "=" not in words[0]:
        from launcher.actions.find_runs import find

        directory = find([words[0]])[0]
        losses.add_losses(directory)
        content = lock.read(directory).content
    else:
        line = Asked(overrides=tuple(words), script_args=tuple(options.script_args)).command_line()
        found = composed(line, measured(wanted=True))
        planned = plan(assessed(found, Judging()), python=sys.executable)
        content = lock.build(planned, job_as_dict(planned.job), found.overrides)
    if options.json:
        print_json({"schema": 1, "recipe": dict(content)})
    else:
        rows = content.get("losses") or []
        print(lock.as_text({key: value for key, value in content.items() if key != "losses"}, rows), end="")
    return 0


def _list(catalog: Catalog, *, as_json: bool) -> int:
    """Print every recipe with its model, GPUs, strategy and predicted peak."""
    facts = machine.facts()
    rows = [_row_of(name, catalog, facts) for name in catalog.groups["recipe"]]
    if as_json:
        print_json({"schema": 1, "recipe": rows})
        return 0
    size = max((len(row["name"]) for row in rows), default=0)
    print(f"{'recipe':{size}}  {'GPUs':>4}  {'strategy':26} {'peak':>10}")
    for row in rows:
        peak = row["verdict"] if row["predicted_bytes"] is None else gib(row["predicted_bytes"])
        print(f"{row['name']:{size}}  {row['gpus'] or '-':>4}  {row['strategy'] or '-':26} {peak:>10}")
        text = row["summary"] if row["reason"] is None else row["reason"]
        print(textwrap.fill(text, width(), initial_indent="    ", subsequent_indent="    "))
    return 0


_NOTHING = {"model": None, "gpus": None, "strategy": None, "predicted_bytes": None, "verdict": "invalid"}


def _row_of(name: str, catalog: Catalog, facts: machine.Machine) -> dict[str, Any]:
    """The row of a recipe; a broken one has the reason in it, and the others theirs."""
    try:
        return _row(recipes.load(catalog.recipe(name)), catalog, facts)
    except ConfigErrors as error:
        reason = "; ".join(f"{each.where}: {each.rule}" for each in error.errors)
        return {"name": name, "summary": "", "sweep": [], **_NOTHING, "reason": reason}


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
    """How a run is laid out, in a few words: ``megatron tp8 pp4 dp2``."""
    degrees = {"tp": spec.world.tensor, "pp": spec.world.pipeline, "cp": spec.world.context, "ep": spec.world.expert}
    parts = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    adapter = [spec.adapter.name] if spec.adapter.name != "none" else []
    engine = spec.parallel.name if backends.of(spec).profile.told_by_preset else spec.backend.name
    return " ".join([engine, *adapter, *parts, *([f"dp{spec.world.data}"] if spec.world.data > 1 else [])])
