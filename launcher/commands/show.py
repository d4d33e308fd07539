"""Show the translated job: argv, environment, generated files and sbatch text, byte for byte what `run` starts.

With the name of a group instead of overrides (`launch show parallel`): its keys, their meaning and defaults.
Exit status: 0, 2 the configuration is wrong, 3 it does not fit (the job is printed anyway).
"""

import argparse

from launcher.actions.check import translate_run
from launcher.actions.requests import JudgeRequest, folder
from launcher.base import files
from launcher.base.errors import DoesNotFit
from launcher.base.terminal import say, width, wrapped
from launcher.commands._options import add_shared, print_answer, request_from
from launcher.config.catalog import Catalog


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_shared(parser, "overrides", "--json")


def run(options: argparse.Namespace) -> int:
    """Print the job, or the keys of a group."""
    catalog = Catalog(folder=folder())
    if len(options.overrides) == 1 and options.overrides[0] in catalog.groups:
        group, keys = options.overrides[0], _keys(catalog, options.overrides[0])
        document = {"schema": 1, "show": {"group": group, "options": list(catalog.groups[group]), "keys": keys}}
        names = "\n".join(wrapped(f"{group}= {' '.join(catalog.groups[group])}", width(), rest="  "))
        print_answer(options, lambda: document, lambda: f"{names}\n\n{keys}".rstrip("\n"))
        return 0
    found = translate_run(request_from(JudgeRequest, options).command_line())
    print_answer(options, found.as_dict, lambda: str(found))
    if found.plan.assessment.verdict.name == "does_not_fit":
        say("launch: this run does not fit; `launch check` shows why")
        return DoesNotFit.exit_status
    return 0


def _keys(catalog: Catalog, group: str) -> str:
    base = catalog.conf[-1] / group / "_base.yaml"
    return files.read_text(base).rstrip("\n") if base.is_file() else ""
