"""Options that several verbs share; meaningless combinations are refused before anything is printed."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.actions.requests import Output, as_model
from launcher.base import terminal
from launcher.base.errors import ConfigError, ConfigErrors, raise_any
from launcher.base.files import JsonObject
from launcher.base.terminal import say

if TYPE_CHECKING:
    from launcher.actions.find_runs import FoundRuns

_OF_ONE_RUN = {
    "--from": (), "--debug": (), "--explain": (), "--speed": (), "--rehearsed": (), "--hf": ("model={}",),
    "--deepspeed": ("launch import deepspeed {} --recipe mine.yaml", "recipe=mine.yaml"),
    "--megatron-args": ("launch import megatron {} --recipe mine.yaml", "recipe=mine.yaml"), "--set": (),
}  # fmt: skip
"""Options that only a single run takes, and the ways to do the same with several."""

_KEPT_AS = {"--from": "lock", "--set": "variables"}  # Options whose attribute has another name.

_SHARED: Mapping[str, JsonObject] = {
    "overrides": {"nargs": "*", "metavar": "OVERRIDE", "help": "group=option or group.key=value"},
    "runs": {"nargs": "*", "metavar": "RUN",
             "help": "name or directory of a run or sweep, SWEEP/POINT, or the id of a job or job array"},
    "--json": {"action": "store_true", "help": "print one JSON document"},
    "--hf": {"type": Path, "metavar": "PATH",
             "help": "take the model from a Hugging Face folder, with its weights, or from only a config.json; "
                     "same as model=PATH"},
    "--trust": {"action": "store_true", "help": "allow files from elsewhere to set what needs your permission"},
    "--engine": {"choices": ("formula", "trace"), "default": "formula",
                 "help": "predict memory with formulas, or trace the worker under fake tensors (seconds; needs torch)"},
    "--plot": {"type": Path, "metavar": "FILE",
               "help": "plot piles and the step's time; FILE ends in .png, .svg or .html"},
    "--no-native": {"dest": "native", "action": "store_false",
                    "help": "do not run the engine's own validator (megatron)"},
    "--no-measurements": {"dest": "measured", "action": "store_false",
                          "help": "predict speed with the shipped constants, without measurements of this cluster"},
    "--anchor": {"metavar": "RUN",
                 "help": "calibrate predictions for its engine and card with this measured run, of one node or more"},
    "--partial": {"action": "store_true",
                  "help": "continue even if keys of another program's file that matter are left out"},
    "--set": {"dest": "variables", "action": "append", "default": [], "metavar": "NAME=VALUE",
              "help": "set a variable that a Megatron-LM script leaves open; may be given several times"},
}  # fmt: skip
"""Options of several verbs, as ``argparse`` takes them."""


def add_shared(parser: argparse.ArgumentParser, *names: str) -> None:
    """Declare options that several verbs share, in the given order."""
    for name in names:
        parser.add_argument(name, **_SHARED[name])


def require_one_run(options: argparse.Namespace, several: str | None) -> None:
    """Raise ConfigErrors for a plot that cannot be made and, with ``several``, for options of a single run."""
    if several is not None:
        _require_nothing_of_one_run(options, several)
    if several is not None and options.engine == "trace":
        rule = f"{several} uses the formulas: a trace takes seconds per point"
        raise ConfigErrors([ConfigError("--engine", "trace", rule, ["--engine formula"])])
    if getattr(options, "explain", None) is not None and options.engine == "trace":
        rule = "a trace has bytes but no formulas: only the terms of --engine formula can be explained"
        raise ConfigErrors([ConfigError("--explain", options.explain, rule, ["--engine formula"])])
    if options.plot is None:
        return
    from launcher.charts.page import check_path

    if several is not None:
        rule = f"a plot shows one run, but {several} gives many: plot one of them by its overrides"
        raise ConfigErrors([ConfigError("--plot", str(options.plot), rule)])
    check_path(options.plot)


def _require_nothing_of_one_run(options: argparse.Namespace, several: str) -> None:
    rule = f"{several} does not use it: it applies to a single run"
    errors = []
    for flag, ways in _OF_ONE_RUN.items():
        found = getattr(options, _KEPT_AS.get(flag, flag.strip("-").replace("-", "_")), None)
        if found:
            path = None if found is True else str(found)
            words = as_model(found) if flag == "--hf" else path
            errors.append(ConfigError(flag, path, rule, [way.format(words) for way in ways]))
    if options.script_args:
        way = f"script_args=[{','.join(options.script_args)}]"
        errors.append(ConfigError("script_args", list(options.script_args), rule, [way]))
    raise_any(errors)


def print_json(document: JsonObject) -> None:
    """Print one JSON document."""
    print(terminal.as_json(document))


def print_answer(options: argparse.Namespace, document: Callable[[], JsonObject], text: Callable[[], str]) -> None:
    """Print the document with ``--json``, else the text; only the one that is printed is made."""
    print(terminal.as_json(document()) if options.json else text(), flush=True)


def request_from[T](kind: type[T], options: argparse.Namespace, **more: Any) -> T:
    """Return an action's request, a dataclass: fields from the options of the same name, and ``more``."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # T is a dataclass.
    given = {name: value for name, value in vars(options).items() if name in names}
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return kind(**plain, **more)


def print_output(output: Output, *, as_json: bool) -> int:
    """Print the document or the text of an answer, and return its exit status."""
    if as_json:
        print_json(output.document)
    elif output.text:
        print(output.text, flush=True)
    for line in output.said:
        say(line)
    return output.exit_status


def named_runs(options: argparse.Namespace) -> "FoundRuns":
    """Return the runs that the words name, asking the user if ambiguous; ConfigErrors for a word that names none."""
    from launcher.actions.find_runs import named  # Late, because check needs no runs.

    return named(options.runs, ask=not options.json)
