"""Options that several verbs share, refused in combinations that mean nothing before anything is printed."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.actions.requests import Output, as_model
from launcher.base import terminal
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.base.terminal import say

if TYPE_CHECKING:
    from launcher.actions.find_runs import Named

_OF_ONE_RUN = {
    "--from": (), "--debug": (), "--explain": (), "--speed": (), "--rehearsed": (), "--hf": ("model={}",),
    "--deepspeed": ("launch import deepspeed {} --recipe mine.yaml", "recipe=mine.yaml"),
    "--megatron-args": ("launch import megatron {} --recipe mine.yaml", "recipe=mine.yaml"), "--set": (),
}  # fmt: skip
"""Options that only a single run reads, and the ways to the same with several."""

_KEPT_AS = {"--from": "lock", "--set": "variables"}  # Where the parser keeps an option that is no attribute's name.

_SHARED: Mapping[str, JsonObject] = {
    "overrides": {"nargs": "*", "metavar": "OVERRIDE", "help": "group=option or group.key=value"},
    "runs": {"nargs": "*", "metavar": "RUN",
             "help": "a run's or sweep's name or directory, SWEEP/POINT, or a job id, also of an array"},
    "--json": {"action": "store_true", "help": "print one JSON document"},
    "--hf": {"type": Path, "metavar": "PATH",
             "help": "take the model from a Hugging Face folder, with its weights, or from a config.json alone, "
                     "as model=PATH"},
    "--trust": {"action": "store_true", "help": "let what is from elsewhere do what needs your word"},
    "--engine": {"choices": ("formula", "trace"), "default": "formula",
                 "help": "predict memory by formulas, or trace the worker under fake tensors (seconds; needs torch)"},
    "--plot": {"type": Path, "metavar": "FILE",
               "help": "draw piles and the step's time; FILE ends in .png, .svg or .html"},
    "--no-native": {"dest": "native", "action": "store_false",
                    "help": "do not ask the engine's own validator (megatron)"},
    "--no-measurements": {"dest": "measured", "action": "store_false",
                          "help": "predict speed as shipped, without what was measured of this cluster"},
    "--anchor": {"metavar": "RUN",
                 "help": "a measured run, of one node or more: its engine's runs on its card are predicted by it"},
    "--partial": {"action": "store_true",
                  "help": "go on although words of another program's file that matter are left out"},
    "--set": {"dest": "variables", "action": "append", "default": [], "metavar": "NAME=VALUE",
              "help": "a variable of a Megatron-LM script that the file leaves open; may be given several times"},
}  # fmt: skip
"""Options of several verbs, as ``argparse`` takes them."""


def add_shared(parser: argparse.ArgumentParser, *names: str) -> None:
    """Declare options that several verbs share, in this order."""
    for name in names:
        parser.add_argument(name, **_SHARED[name])


def require_one_run(options: argparse.Namespace, several: str | None) -> None:
    """Refuse (ConfigErrors) a figure that cannot be made, and for ``several`` runs the options of one."""
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
    from launcher.charts.page import check_path

    if several is not None:
        rule = f"a figure shows one run, and {several} are many: draw one of them by its overrides"
        raise ConfigErrors([ConfigError("--plot", str(options.plot), rule)])
    check_path(options.plot)


def _require_nothing_of_one_run(options: argparse.Namespace, several: str) -> None:
    rule = f"{several} does not read it: it belongs to one run"
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
    if errors:
        raise ConfigErrors(errors)


def print_json(document: JsonObject) -> None:
    """Print the one document."""
    print(terminal.as_json(document))


def print_answer(options: argparse.Namespace, document: Callable[[], JsonObject], text: Callable[[], str]) -> None:
    """Print the one document with ``--json``, else the text; only that is made."""
    print(terminal.as_json(document()) if options.json else text(), flush=True)


def request_from[T](kind: type[T], options: argparse.Namespace, **more: Any) -> T:
    """The request of an action, a dataclass: fields from the options of their names, and ``more``, which are none."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # T is a dataclass.
    given = {name: value for name, value in vars(options).items() if name in names}
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return kind(**plain, **more)


def print_output(output: Output, *, as_json: bool) -> int:
    """Print the document or the text of an answer; the exit status."""
    if as_json:
        print_json(output.document)
    elif output.text:
        print(output.text, flush=True)
    for line in output.said:
        say(line)
    return output.exit_status


def named_runs(options: argparse.Namespace) -> "Named":
    """The runs that the words name, of which a person may be asked which; ConfigErrors for one that is no run."""
    from launcher.actions.find_runs import named  # Late, because check needs no runs.

    return named(options.runs, ask=not options.json)
