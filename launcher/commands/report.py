"""A page of a run: what was asked, predicted and measured, its curves, what happened when, and how it ended.

One file that holds all that it shows, for any browser, and loads nothing. A run of any state is shown by what it has.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from launcher import files
from launcher.charts import library
from launcher.commands._common import add_json, add_runs, folder, print_json, say
from launcher.commands._finding import find, settle
from launcher.errors import ConfigError, ConfigErrors, SubmitError
from launcher.rundir import names

_SUFFIX = ".html"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_runs(parser)
    words = "the page (default: the run's name with .html, in this folder)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=words)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Write the page."""
    if options.output is not None:
        _require_page(options.output)
    library.require("--output", options.output or Path(f"page{_SUFFIX}"))
    settle(options)
    directories = list(dict.fromkeys(find(options.runs))) if options.runs else []
    if not directories:
        raise ConfigErrors([ConfigError("RUN", None, "a page is of a run: its name is missing", ["launch status"])])
    target = options.output if options.output is not None else folder() / f"{_name(options.runs)}{_SUFFIX}"
    content = _page(directories)
    try:
        files.write_text_atomically(target, content)
    except OSError as error:
        raise SubmitError(f"--output: {target} cannot be written: {error.strerror or error}") from None
    if options.json:
        runs = [{"id": names.id_of(each), "directory": str(each)} for each in directories]
        print_json({"schema": 1, "report": {"file": str(target), "bytes": len(content.encode()), "runs": runs}})
    else:
        say(f"launch: the page is in {target}")
    return 0


def _page(directories: list[Path]) -> str:
    """The page of one run.

    Raises:
        ConfigErrors: There are several.
    """
    from launcher.report import page

    if len(directories) > 1:
        raise ConfigErrors([ConfigError("RUN", None, "a page is of one run", ["launch compare RUN RUN"])])
    return page.of_run(directories[0])


def _require_page(path: Path) -> None:
    """Refuse a name that no browser opens as a page.

    Raises:
        ConfigErrors: It has another suffix.
    """
    if path.suffix.lower() != _SUFFIX:
        rule = f"the name of a page ends in {_SUFFIX}"
        raise ConfigErrors([ConfigError("--output", str(path), rule, [f"-o {path.with_suffix(_SUFFIX)}"])])


def _name(words: list[str]) -> str:
    """A file's name for the runs, from the words that name them."""
    return Path(words[0]).name or "report"
