"""List recipes, or show one as the overrides that it stands for.

launch recipe list
launch recipe show NAME
"""

from __future__ import annotations

import argparse

from launcher import recipes
from launcher.catalog import Catalog
from launcher.commands.common import add_json, folder, print_json
from launcher.errors import ConfigError, ConfigErrors
from launcher.parse import closest


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("action", choices=("list", "show"))
    parser.add_argument("name", nargs="?", metavar="NAME")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print recipes."""
    catalog = Catalog(folder=folder())
    if options.action == "list":
        found = [recipes.load(catalog.recipe(name)) for name in catalog.groups["recipe"]]
        if options.json:
            print_json({"schema": 1, "recipe": [{"name": r.name, "summary": r.summary} for r in found]})
        else:
            size = max((len(r.name) for r in found), default=0)
            for recipe in found:
                print(f"{recipe.name:{size}}  {recipe.summary}")
        return 0
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
