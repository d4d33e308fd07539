"""Search for the fastest layouts of a run that fit, and print the overrides that select each.

What you set is fixed, the rest is searched: the engine, the parallel degrees, sharding, the micro-batch,
recomputation, offloading. A key may have several values, parallel.tensor=1,2,4; the search then picks one of them.
Needs no GPU, no torch, no Slurm and no network.

Exit status: 0 some layout fits, 2 the configuration is wrong, 3 nothing fits, or not within --days, 130 interrupted,
with the best found so far.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from launcher import backends
from launcher.actions import layout_search, recipes
from launcher.actions import plan as action
from launcher.actions.plan import Answer, Search, own_runs, question_of
from launcher.actions.requests import MeasureRequest
from launcher.base.errors import INTERRUPTED, ConfigError, ConfigErrors, DoesNotFit, JobFailed, raise_any
from launcher.base.terminal import say, width, wrapped
from launcher.base.units import rounded
from launcher.commands._options import add_shared, print_json, print_output, request_from
from launcher.estimate.speed.estimate import unknown
from launcher.planner import document, largest, shortlist
from launcher.planner.keys import VARIED
from launcher.planner.layouts import Plan
from launcher.planner.question import Question
from launcher.preflight.measured.known import Measured
from launcher.views.plan import table

_WIDEST = 120
_WORTH_SAYING_S = 1.0  # Seconds of validators beyond which the time of the whole command is printed, too.


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_shared(parser, "overrides", "--json")
    words = "also search the options of these groups, which change the training: precision, optimizer, adapter"
    parser.add_argument("--vary", choices=_Groups(), metavar="GROUPS", action="append", default=[], help=words)
    words = "rank layouts whose mode no measurement backs among the others, not after them"
    parser.add_argument("--unmeasured", action="store_true", help=words)
    _add_measurement(parser)
    _add_questions(parser)
    parser.add_argument("--lines", action="store_true", help="print below each layout its command line")
    words = "plot speed over memory, with one search per fifth of the GPU's memory; FILE ends in .png, .svg or .html"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=words)
    add_shared(parser, "--no-measurements", "--anchor")
    parser.add_argument("--measurements", action="store_true", help="show the measured runs and their constants")
    words = "remove a run, given by name or directory, from the measured runs"
    parser.add_argument("--forget", metavar="RUN", help=words)
    add_shared(parser, "--no-native")


class _Groups(tuple[str, ...]):
    __slots__ = ()

    def __new__(cls) -> "_Groups":
        """All groups that may vary."""
        return super().__new__(cls, VARIED)

    def __contains__(self, word: object) -> bool:
        return set(str(word).split(",")) <= set(VARIED)


def run(options: argparse.Namespace) -> int:
    """Answer one question."""
    options.vary = list(dict.fromkeys(group for word in options.vary for group in word.split(",")))
    if options.measurements or options.forget is not None:
        return _measured_runs(options)
    _require_whole(options)
    if options.results is not None:
        return _results(options)
    began = action.clock()
    if options.save is not None:
        options.save = recipes.free_name(options.save)
    request = request_from(MeasureRequest, options, ask=_can_ask(options))
    question = question_of(request)
    if options.plot is not None:
        _require_plot(options.plot, question)
    answer = _searched(options, Search(request, question, began=began), began)
    found = answer.plan
    measures = options.measure is not None and found.finished and bool(found.layouts) and answer.is_enough
    status = 0 if measures and options.json else _ended(options, request, answer)
    if options.plot is not None and found.finished and found.layouts:
        _draw(options.plot, answer.question, found, own_runs(request, answer.question))
    if not measures:
        return status
    from launcher.actions import measure_layouts

    output = measure_layouts.measure(request, answer.question, found, None if options.json else print)
    return print_output(output, as_json=options.json)


def _can_ask(options: argparse.Namespace) -> bool:
    return not options.json and sys.stdin.isatty() and sys.stderr.isatty()


def _measured_runs(options: argparse.Namespace) -> int:
    from launcher.actions import measured_runs  # Imported late, as everything that starts or reads runs.

    _require_listing_alone(options)
    words = options.overrides
    found = measured_runs.list_runs(words) if options.forget is None else measured_runs.forget(words, options.forget)
    return print_output(found, as_json=options.json)


def _results(options: argparse.Namespace) -> int:
    from launcher.actions import measure_layouts

    save = None if options.save is None else options.save.removesuffix(".yaml")
    found = measure_layouts.read_results(options.results, save=save, ask=not options.json)
    if not options.json:
        print(measure_layouts.results_text(found))
    recipe = measure_layouts.write_winner(found, save, trusted=options.trust)
    if options.json:
        print_json(measure_layouts.results_document(found, recipe))
    elif recipe is not None:
        print(f"\nthe fastest as a recipe: {recipe}\nlaunch recipe={recipe.stem}")
    return 0 if found.measured or found.waits else JobFailed.exit_status


def _searched(options: argparse.Namespace, search: Search, began: float) -> Answer:
    early = search.answer()
    if not options.json:
        _print(options, early)
    answer = search.sound(early)
    seconds = action.clock() - began
    whole = replace(answer, plan=replace(answer.plan, seconds=seconds))
    if answer is not early and not options.json:
        print("\nagain, without the layouts that the engines' own validators refuse:\n")
        _print(options, whole)
    elif not options.json and (asked := seconds - early.plan.seconds) >= _WORTH_SAYING_S:
        own = f"{rounded(asked, 2)} s of that in the engines' own validators (--no-native skips them)"
        say(f"launch: {rounded(seconds, 2)} s in total, {own}")
    return whole


def _print(options: argparse.Namespace, answer: Answer) -> None:
    columns, found = width(_WIDEST), answer.plan
    said = wrapped(answer.sentences, columns)
    print("\n".join([*said, *([""] if said and found.layouts else [])]), end="\n" if said else "")
    if found.layouts or not said:
        print(table.text(found, columns, lines=options.lines), flush=True)


def _ended(options: argparse.Namespace, request: MeasureRequest, answer: Answer) -> int:
    found = answer.plan
    saved = recipes.save_layout(request, answer.question, found)
    if options.json:
        whole = document.as_dict(found)
        recipe = {} if saved is None else {"recipe": saved}
        print_json({**whole, "plan": {**whole["plan"], **answer.keys}, **recipe})
    if not found.finished:
        return INTERRUPTED
    return 0 if answer.is_enough else DoesNotFit.exit_status


def _require_plot(path: Path, question: Question) -> None:
    from launcher.charts.page import check_path

    check_path(path)
    spec = question.openings[0].spec
    why = unknown(spec, backends.of(spec))
    if why is not None:
        rule = f"it plots speed over memory, but the speed is unknown: {why}"
        raise ConfigErrors([ConfigError("--plot", str(path), rule, ["hardware=h100_80g"])])


def _draw(path: Path, question: Question, found: Plan, measured: Measured | None) -> None:
    from launcher.planner.frontier import frontier
    from launcher.views.plan import plot

    with layout_search.show_progress() as show:
        layouts = frontier(question, found, measured=measured, progress=show)
    plot.write(path, layouts)
    say(f"launch: the figure is in {path}")


_OF_A_SEARCH = ("vary", "unmeasured", "lines", "plot", "smallest", "largest", "tokens", "days", "price")
"""Options that only a search uses, besides those in :func:`_given`."""


def _add_questions(parser: argparse.ArgumentParser) -> None:
    words = "find the fewest GPUs that can train it, or can within --days; the size that you set is the limit"
    parser.add_argument("--smallest", action="store_true", help=words)
    words = "find the largest micro-batch, sequence or model preset that fits"
    parser.add_argument("--largest", choices=tuple(largest.KEYS), help=words)
    words = "tokens to train on, 1T or 500B, short for train.tokens: show the time that each layout takes for them"
    parser.add_argument("--tokens", metavar="N", help=words)
    parser.add_argument("--days", type=float, metavar="D", help="limit on the time of the whole training")
    words = "price of a GPU-hour, short for cluster.price_per_gpu_hour"
    parser.add_argument("--price", type=float, metavar="P", help=words)


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--measure", type=int, metavar="N", help="start the N best layouts as short runs")
    words = f"--measure: steps per run ({shortlist.STEPS})"
    parser.add_argument("--steps", type=int, metavar="N", help=words)
    parser.add_argument("--yes", action="store_true", help="--measure: do not ask about the GPU-hours")
    words = "--measure: only show what would be started"
    parser.add_argument("--dry-run", action="store_true", help=words)
    words = "write the first layout as the recipe NAME; --results: the fastest"
    parser.add_argument("--save", metavar="NAME", help=words)
    words = "rank the layouts that --measure started, and write the fastest as a recipe"
    parser.add_argument("--results", metavar="ID", help=words)
    add_shared(parser, "--trust")


_OF_A_MEASUREMENT = ("save", "measure", "steps", "yes", "dry_run", "results", "trust")
"""Options, besides those of a search, that a listing of measured runs does not use."""


def _require_listing_alone(options: argparse.Namespace) -> None:
    flag = "--measurements" if options.forget is None else "--forget"
    beside = () if options.forget is None else ("measurements",)
    typed = _given(options, (*_OF_A_SEARCH, *_OF_A_MEASUREMENT, *beside))
    if typed:
        rule = f"{flag} does not search and does not use it"
        raise ConfigErrors(ConfigError(each, None, rule) for each in typed)


def _given(options: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """The flags that the user gave, among these options and those that turn off a part of a search."""
    values = {f"--{name.replace('_', '-')}": getattr(options, name) for name in names}
    typed = [flag for flag, value in values.items() if value is not None and value is not False and value != []]
    off = {"--no-measurements": options.measured, "--no-native": options.native}
    return [*typed, *(flag for flag, is_on in off.items() if not is_on)]


def _require_whole(options: argparse.Namespace) -> None:
    of_measure = {"--steps": options.steps is not None, "--yes": options.yes, "--dry-run": options.dry_run}
    errors = [
        ConfigError(name, None, "it applies only to --measure, which starts runs", [f"--measure 3 {name}"])
        for name, given in of_measure.items()
        if given and options.measure is None
    ]
    if options.save is not None and options.measure is not None:
        rule = "the fastest layout is known only when the runs have ended: --results writes its recipe"
        errors.append(ConfigError("--save", options.save, rule, [f"--results ID --save {options.save}"]))
    if options.results is not None:
        rule = "--results reads a measurement, which already has its settings"
        typed = [*(["OVERRIDES"] if options.overrides else []), *_given(options, ("measure", *_OF_A_SEARCH))]
        errors += [ConfigError(name, None, rule, ["launch plan --results ID"]) for name in typed]
    raise_any(errors)
