"""Write an HTML page about a run: settings, predictions and measurements, curves, events, and how it ended.

The page is one self-contained file for any browser. A run in any state is shown with the data that it has. Several runs
are overlaid and shown side by side; a sweep is shown as its points over the settings that vary.
"""

import argparse
from pathlib import Path

from launcher.actions.requests import folder
from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError
from launcher.base.terminal import say
from launcher.charts import library
from launcher.commands._options import add_shared, named_runs, print_json
from launcher.rundir import run_names

_SUFFIX = ".html"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_shared(parser, "runs")
    words = "the page (default: named after the run, in this folder; for several runs report.html)"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=words)
    add_shared(parser, "--json")


def run(options: argparse.Namespace) -> int:
    """Write the page."""
    if options.output is not None and options.output.suffix.lower() != _SUFFIX:
        rule, way = f"the name of a page must end in {_SUFFIX}", f"-o {options.output.with_suffix(_SUFFIX)}"
        raise ConfigErrors([ConfigError("--output", str(options.output), rule, [way])])
    library.require("--output", options.output or Path(f"page{_SUFFIX}"))
    if not options.runs:
        raise ConfigErrors([ConfigError("RUN", None, "name the run to report on", ["launch status"])])
    found = named_runs(options)
    directories = list(dict.fromkeys(found.runs))
    name = Path(options.runs[0]).name if len(options.runs) == 1 else ""
    target = options.output if options.output is not None else folder() / f"{name or 'report'}{_SUFFIX}"
    content = _page(directories, found.sweep)
    try:
        files.write_text_atomically(target, content)
    except OSError as error:
        raise SubmitError(f"--output: {target} cannot be written: {error.strerror or error}") from None
    if options.json:
        runs = [{"id": run_names.id_of(each), "directory": str(each)} for each in directories]
        print_json({"schema": 1, "report": {"file": str(target), "bytes": len(content.encode()), "runs": runs}})
    else:
        say(f"launch: the page is in {target}")
    return 0


def _page(directories: list[Path], sweep: Path | None) -> str:
    if sweep is not None:
        from launcher.views.page import sweep as view

        return view.swept(sweep)
    if len(directories) > 1:
        from launcher.views.page import many

        return many.several(directories)
    from launcher.actions.diagnosis import takes
    from launcher.views.page import of_run

    [directory] = directories
    return of_run(directory, lambda words: takes(directory, words))
