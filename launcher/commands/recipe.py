"""Manage recipes and locks: runs as data that someone else can repeat.

launch recipe list                        all, with GPUs, strategy, memory peak
launch recipe show NAME|PATH              the overrides that it stands for
launch recipe save NAME OVERRIDES...      write recipes/NAME.yaml; with --run
                                          RUN from a run's command line
launch recipe lock RUN|OVERRIDES...       the lock of a run with its first
                                          losses, or of one not yet started
launch recipe verify LOCK [KEY=VALUE...]  run the first steps here and compare
                                          losses; exit 5 if they differ
launch recipe diff A B                    the settings that differ between two
                                          recipes, locks or runs
launch recipe fetch SOURCE                into recipes/: https://...#sha256=HEX
                                          git+https://HOST/REPO@REVISION#PATH
launch recipe trust FILE                  show the settings with side effects
                                          of a recipe, lock or conf/ from
                                          elsewhere, and trust it; --origin
                                          trusts its repository
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.actions.requests import Output
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.commands._options import add_shared, print_output
from launcher.rundir import results

_FEWEST = {"list": 0, "show": 1, "save": 1, "lock": 1, "verify": 1, "diff": 2, "fetch": 1, "trust": 0}
_MOST = {"list": 0, "show": 1, "diff": 2, "fetch": 1, "trust": 1}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("action", choices=tuple(_FEWEST), help="the action, as above")
    parser.add_argument("words", nargs="*", default=[], metavar="WORD", help="arguments of the action, as above")
    parser.add_argument("--run", metavar="RUN", help="save: the run whose command line becomes the recipe")
    parser.add_argument("--summary", metavar="TEXT", help="save: the purpose of the recipe, in one line")
    parser.add_argument("--name", metavar="NAME", help="fetch: the name to save it under")
    words = f"verify: steps to compare ({results.FIRST_LOSSES})"
    parser.add_argument("--steps", type=int, default=results.FIRST_LOSSES, metavar="N", help=words)
    words = "trust: all files of the repository that contains FILE, by default the working folder"
    parser.add_argument("--origin", action="store_true", help=words)
    add_shared(parser, "--trust", "--json")


def run(options: argparse.Namespace) -> int:
    """Call the action with its arguments."""
    action, words = options.action, options.words
    if not _FEWEST[action] <= len(words) <= _MOST.get(action, len(words)):
        usage = next(line for line in (__doc__ or "").splitlines() if line.startswith(f"launch recipe {action}"))
        rule = f"usage: {usage.split('  ')[0]}"
        raise ConfigErrors([ConfigError("recipe", " ".join([action, *words]), rule)])
    return print_output(_answer(action, words, options), as_json=options.json)


def _answer(action: str, words: Sequence[str], options: argparse.Namespace) -> Output:
    from launcher.actions import recipes, repeat, trust_records

    trusted = options.trust
    answers: dict[str, Callable[[], Output]] = {
        "list": recipes.list_recipes,
        "show": lambda: recipes.show(words[0]),
        "save": lambda: recipes.save(words[0], words[1:], run=options.run, summary=options.summary, trusted=trusted),
        "lock": lambda: recipes.lock_of(words, options.script_args),
        "verify": lambda: repeat.verify(Path(words[0]), words[1:], steps=options.steps, trusted=trusted),
        "diff": lambda: repeat.diff(*words),
        "fetch": lambda: recipes.fetch(words[0], options.name),
        "trust": lambda: trust_records.trust_file(words, origin=options.origin),
    }
    return answers[action]()
