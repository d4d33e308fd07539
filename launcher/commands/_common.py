"""Options that several verbs share, and the way from words to a checked plan.

A verb declares its options by the functions ``add_...``, refuses combinations by ``require_...`` before it prints
anything, reads its words by :func:`asked` and judges them by :func:`assessed`. Results go to stdout and every message
to stderr (:func:`say`), so that ``--json`` stands alone on stdout.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.backends import Judgement
from launcher.base import files, terminal
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError, unreadable
from launcher.config import backend_choice, best, recipes
from launcher.config.catalog import Catalog
from launcher.config.overrides import is_own_model, read
from launcher.config.recipes import Recipe
from launcher.config.request import Request, request
from launcher.data import look
from launcher.preflight import assess, evidence, fixes, job_python, looked
from launcher.preflight.assess import Assessment, Refinement
from launcher.preflight.data import Looking
from launcher.preflight.fixes import Searching
from launcher.preflight.measured.known import Measured
from launcher.rules.model import not_named
from launcher.spec import ClusterSpec, RunSpec

_OF_ONE_RUN = {
    "--from": (),
    "--debug": (),
    "--explain": (),
    "--speed": (),
    "--rehearsed": (),
    "--hf": ("model={}",),
    "--deepspeed": ("launch import deepspeed {} --recipe mine.yaml", "recipe=mine.yaml"),
    "--megatron-args": ("launch import megatron {} --recipe mine.yaml", "recipe=mine.yaml"),
    "--set": (),
}
"""Options that only a single run reads, and the ways to the same with several."""

_KEPT_AS = {"--from": "lock", "--set": "variables"}
"""Where the parser keeps an option that is no attribute's name."""


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """The positional overrides and ``--json``."""
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="group=option or group.key=value")
    add_json(parser)


def add_hf(parser: argparse.ArgumentParser) -> None:
    """``--hf``: the model of a folder or file, as ``model=`` takes it."""
    words = "take the model from a Hugging Face folder, with its weights, or from a config.json alone, as model=PATH"
    parser.add_argument("--hf", type=Path, metavar="PATH", help=words)


def take_hf(options: argparse.Namespace) -> None:
    """Put the word ``model=PATH`` before the others in place of ``--hf PATH``.

    Raises:
        ConfigErrors: The words choose a model, too.
    """
    if options.hf is None:
        return
    word = f"model={_as_model(options.hf)}"
    models = [text for text in options.overrides if text.startswith("model=")]
    if models:
        rule = "--hf chooses the model, and so does this word: one of them"
        raise ConfigErrors([ConfigError("model", models[0].partition("=")[2], rule, [word])])
    options.overrides = [word, *options.overrides]


def _as_model(path: Path) -> str:
    """A path as ``model=`` takes it, and not as an option or a name of the Hub."""
    from launcher.config import hub  # Late, because few commands need it.

    text = str(path)
    return text if is_own_model(text) and not hub.is_name(text) else f"./{text}"


def add_runs(parser: argparse.ArgumentParser) -> None:
    """The positional runs."""
    words = "a run's or sweep's name or directory, SWEEP/POINT, or a job id, also of an array"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=words)


def add_json(parser: argparse.ArgumentParser) -> None:
    """``--json``: one JSON document on stdout and nothing else there."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """``--trust``: let what is from elsewhere run code, fetch, send and leave the working folder."""
    parser.add_argument("--trust", action="store_true", help="let what is from elsewhere do what needs your word")


def recipe_of(options: argparse.Namespace) -> tuple[Path, Recipe] | None:
    """The recipe that a command line names, less what its other words take out, and the recipe's file."""
    catalog = Catalog(folder=folder())
    return recipes.named(read(options.overrides, catalog)[0], catalog)


def asked(options: argparse.Namespace) -> Request:
    """The request of a command line for one run, with the best layout in place of ``plan=best``, which is said.

    The axes of its recipe are left aside, which is said, too.
    """
    words, has_best = best.taken_out(options.overrides)
    if has_best:
        from launcher.commands._best import laid_out  # Late, because few command lines ask for a layout.

        words = laid_out(words, Catalog(folder=folder()), measured(options))
    found = request(words, script_args=options.script_args)
    named = None if found.errors else recipe_of(options)
    if named is not None and named[1].sweep:
        say(f"launch: this is one run, without the recipe's sweep of {', '.join(named[1].sweep)}: -m runs that")
    return found


def add_engine(parser: argparse.ArgumentParser) -> None:
    """``--engine`` and ``--plot``: where the memory comes from, and a figure of it."""
    words = "predict memory by formulas, or trace the worker under fake tensors (seconds; needs torch)"
    parser.add_argument("--engine", choices=("formula", "trace"), default="formula", help=words)
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw piles and the step's time; FILE ends in .png, .svg or .html"
    )


def require_one_run(options: argparse.Namespace, several: str | None) -> None:
    """Refuse a figure that cannot be made, and for ``several`` runs the options of one, before anything is printed.

    Raises:
        ConfigErrors: They were asked for.
    """
    if several is not None:
        _require_nothing_of_one_run(options, several)
    if several is not None and options.engine == "trace":
        rule = f"{several} takes the formulas: a trace takes seconds for each point"
        raise ConfigErrors([ConfigError("--engine", "trace", rule, ["--engine formula"])])
    if getattr(options, "explain", None) is not None and options.engine == "trace":
        rule = "a trace has bytes and no formulas: the terms that are explained are those of --engine formula"
        raise ConfigErrors([ConfigError("--explain", options.explain, rule, ["--engine formula"])])
    if options.plot is None:
        return
    from launcher.charts import figure

    if several is not None:
        rule = f"a figure shows one run, and {several} are many: draw one of them by its overrides"
        raise ConfigErrors([ConfigError("--plot", str(options.plot), rule)])
    figure.check_path(options.plot)


def _require_nothing_of_one_run(options: argparse.Namespace, several: str) -> None:
    """Refuse the options and words that only a single run reads, which would else be dropped."""
    rule = f"{several} does not read it: it belongs to one run"
    errors = []
    for flag, ways in _OF_ONE_RUN.items():
        found = getattr(options, _KEPT_AS.get(flag, flag.strip("-").replace("-", "_")), None)
        if found:
            path = None if found is True else str(found)
            words = _as_model(found) if flag == "--hf" else path
            errors.append(ConfigError(flag, path, rule, [way.format(words) for way in ways]))
    if options.script_args:
        way = f"script_args=[{','.join(options.script_args)}]"
        errors.append(ConfigError("script_args", list(options.script_args), rule, [way]))
    if errors:
        raise ConfigErrors(errors)


def memory_engine(options: argparse.Namespace) -> Refinement | None:
    """The memory engine that was asked for, where it is not the formulas."""
    if options.engine != "trace":
        return None
    from launcher.preflight import traced  # Late, because the formulas need none of what it imports.

    return traced.traced


def draw(options: argparse.Namespace, assessment: Assessment) -> None:
    """Draw the figure, if one was asked for and there is an estimate."""
    if options.plot is None or assessment.errors:
        return
    if assessment.estimate is None:
        say(f"launch: {options.plot} is not written: {not_named().rule}")
        return
    from launcher.preflight import plot

    plot.write(options.plot, assessment, assess.broken_down(assessment.spec, assessment.estimate))
    say(f"launch: the figure is in {options.plot}")


def add_native(parser: argparse.ArgumentParser) -> None:
    """``--no-native``: do not ask the engine's own validator."""
    parser.add_argument(
        "--no-native", dest="native", action="store_false", help="do not ask the engine's own validator (megatron)"
    )


def add_measured(parser: argparse.ArgumentParser) -> None:
    """``--no-measurements``: predict with the shipped constants alone."""
    words = "predict speed as shipped, without what was measured of this cluster"
    parser.add_argument("--no-measurements", dest="measured", action="store_false", help=words)


def measured(options: argparse.Namespace, cluster: ClusterSpec | None = None) -> Measured | None:
    """The measured runs of a command, those of a cluster read at once; None where they are switched off."""
    own = Measured() if getattr(options, "measured", True) else None  # Not every verb has the option.
    if own is not None and cluster is not None:
        own.read(cluster)
        own.tell(say)
    return own


def assessed(
    found: Request,
    refined: Refinement | None = None,
    *,
    native: Callable[[RunSpec], Judgement] | None = None,
    search: Searching = fixes.search,
    looking: Looking = look.look,
    resumed: bool = False,
    python: job_python.Asking = job_python.kept,
    measured: Measured | None = None,
) -> Assessment:
    """Judge a request and look at its data; what reading it found stands first, and what this machine lacks last.

    Args:
        found: The request.
        refined: Another memory engine than the formulas.
        native: Asks the engine's own validator, too.
        search: How to look for ways out.
        looking: How to look at data.
        resumed: True if the run goes on from a checkpoint of its own, and ``save.load`` is not looked at.
        python: How the packages of the job's Python are found out; as it is, nothing is started for it.
        measured: The user's own measured runs; None takes the shipped constants.

    Raises:
        ConfigErrors: Nothing could be read that could be judged.
    """
    if found.spec is None:
        raise ConfigErrors(found.errors)
    spec, missing = (found.spec, ()) if resumed else _loaded(found.spec)
    earlier = (*found.errors, *missing)
    how: dict[str, Any] = {"refined": refined, "native": native, "search": search, "python": python}
    judged = looked.assessed(spec, looking=looking, earlier=earlier, measured=measured, **how).assessment
    if measured is not None:
        measured.tell(say)
    catalog = Catalog(folder=folder())
    warnings = (*found.warnings, *judged.warnings)
    return replace(
        judged,
        errors=backend_choice.leaving(found.backend, judged.errors, catalog),
        warnings=backend_choice.leaving(found.backend, warnings, catalog),
        rehearsed=None if judged.errors else evidence.read(spec),
    )


def _loaded(spec: RunSpec) -> tuple[RunSpec, tuple[ConfigError, ...]]:
    """A run with the checkpoint that ``save.load`` means, which is said; and why it cannot start from what it names."""
    if spec.save.load is None and spec.model.weights is None:
        return spec, ()
    from launcher.rundir import loading  # Late, because few runs start from another's checkpoint.

    found = loading.resolved(spec, folder())
    for line in found.said:
        say(f"launch: {line}")
    return found.spec, found.errors


def write_new(
    path: Path, content: str | bytes, *, otherwise: str = "", before: Callable[[bytes], None] | None = None
) -> None:
    """Write a file that must not exist yet, with its folder, whole or not at all.

    Args:
        path: The file.
        content: Its text or bytes.
        otherwise: Another way for the user where it exists, for the message.
        before: Called with the bytes before the file appears; where it fails, no file does.

    Raises:
        SubmitError: It exists, or cannot be written.
    """
    data = content if isinstance(content, bytes) else content.encode()
    exists = SubmitError(f"{path} exists and is not overwritten{otherwise}")
    if os.path.lexists(path):
        raise exists
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if before is not None:
            before(data)
        files.write_new(path, data)
    except FileExistsError:
        raise exists from None
    except (OSError, ValueError) as error:
        raise SubmitError(f"{path} cannot be written: {unreadable(error)}") from None


def print_json(document: dict[str, Any]) -> None:
    """Print the one document."""
    print(terminal.as_json(document))


def say(text: str) -> None:
    """Give a message to a person: on stderr, so that stdout holds the result alone, unless the API hears it."""
    _hears.get()(text)


def _on_stderr(text: str) -> None:
    print(terminal.visible(text), file=sys.stderr)  # Rich may show it, beside a progress bar.


_hears: ContextVar[Callable[[str], None]] = ContextVar("hears", default=_on_stderr)
"""Who hears the messages: of each thread of its own, since a program may check in several."""


def is_heard_on_stderr() -> bool:
    """True if messages go to stderr, and not to a program that uses the API."""
    return _hears.get() is _on_stderr


@contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Give the messages of :func:`say` to a listener."""
    token = _hears.set(listener)
    try:
        yield
    finally:
        _hears.reset(token)


def pasteable(words: Iterable[str]) -> str:
    """Words for a shell, one a line; in double quotes where a word holds single ones, as texts of overrides do."""
    plain = re.compile(r'[^"$`!\\]*')
    quoted = (f'"{word}"' if "'" in word and plain.fullmatch(word) else shlex.quote(word) for word in words)
    return " \\\n  ".join(quoted)


def width(widest: int = 100) -> int:
    """Columns of the terminal, at most so many; 80 where there is none, or it does not know."""
    try:
        return min(widest, os.get_terminal_size(sys.stdout.fileno()).columns or 80)
    except OSError:
        return 80


def folder() -> Path:
    """The working folder."""
    return Path.cwd()
