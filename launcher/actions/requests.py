"""From the options of a verb to a judged run: composed by :func:`compose_run`, judged by :func:`judge_run`."""

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError, unreadable
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.machine import Machine
from launcher.base.terminal import say
from launcher.config import choices, synonyms
from launcher.config.catalog import Catalog
from launcher.config.overrides import is_own_model
from launcher.config.request import CommandLine, Request, request_of
from launcher.preflight import assess, evidence, findings
from launcher.preflight.assess import Assessment, Refinement
from launcher.preflight.assess_here import Judging, assess_here
from launcher.preflight.measured.known import Measured
from launcher.rules.model import not_named
from launcher.spec import ClusterSpec, RunSpec, edit
from launcher.spec.parse import applied, known_keys

type Engine = Literal["formula", "trace"]

_PARTIAL = "run.partial=true"  # The word that ``--partial`` stands for: a run that goes on with it is recorded with it.


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """Options with which several verbs judge a run."""

    overrides: tuple[str, ...] = ()  # The words of the run as typed.
    script_args: tuple[str, ...] = ()  # The words after ``--``.
    hf: Path | None = None  # Take the model from this folder or config.json.
    engine: Engine = "formula"  # Predict memory by formulas, or trace the worker under fake tensors.
    plot: Path | None = None  # Draw memory and time into this file.
    native: bool = True  # Ask the engine's own validator, too.
    measured: bool = True  # Predict with what was measured of the cluster.
    anchor: str | None = None  # Predict runs that are like this measured one by what was measured of it.
    partial: bool = False  # Go on although words of foreign files that matter are left out.
    trust: bool = False  # Let what is from elsewhere do what needs the user's word.

    @property
    def typed(self) -> tuple[str, ...]:
        """The words, ``model=PATH`` in front for ``--hf PATH``; raises ConfigErrors where they choose a model, too."""
        if self.hf is None:
            return self.overrides
        word = f"model={as_model(self.hf)}"
        models = [text for text in self.overrides if text.startswith("model=")]
        if models:
            rule = "--hf chooses the model, and so does this word: one of them"
            raise ConfigErrors([ConfigError("model", models[0].partition("=")[2], rule, [word])])
        return (word, *self.overrides)

    def command_line(self, further: Iterable[str] = ()) -> CommandLine:
        """The words behind those of other programs' files (``further``), and behind what ``--partial`` stands for."""
        words = (*further, *([_PARTIAL] if self.partial else []), *self.typed)
        return CommandLine(words=words, script_args=self.script_args, catalog=Catalog(folder=folder()))


def as_model(path: Path) -> str:
    """A path as ``model=`` takes it, and not as an option or a name of the Hub."""
    from launcher.config.hub import repository as hub  # Late, because few commands need it.

    text = str(path)
    return text if is_own_model(text) and not hub.is_name(text) else f"./{text}"


def compose_run(line: CommandLine, own: Measured | None, facts: Machine | None = None) -> Request:
    """Compose the one run of a command line, with the best layout in place of ``plan=best``; no axes of its recipe."""
    words, has_auto = synonyms.without_auto(line.words)
    words, has_best = synonyms.without_best(words)
    if has_auto and not has_best:
        line = replace(line, words=(*words, *_least_recomputation(replace(line, words=words), own)))
    if has_best:
        from launcher.actions.layout_search import choose_layout  # Late, because few command lines ask for a layout.

        line = replace(line, words=choose_layout(words, line.catalog, own))
    found = request_of(line, facts)
    if not found.errors and line.recipe is not None and line.recipe[1].sweep:
        axes = ", ".join(line.recipe[1].sweep)
        say(f"launch: this is one run, without the recipe's sweep of {axes}: -m runs that")
    return found


def _least_recomputation(line: CommandLine, own: Measured | None) -> tuple[str, ...]:
    """The words in the place of ``checkpointing=auto``; none where the run is not valid, whatever is recomputed."""
    from launcher.planner import recomputation  # Late, because few command lines ask for it.

    request = request_of(replace(line, words=(*line.words, "checkpointing=none")))
    spec = request.spec
    if spec is None or request.errors or spec.judges_no_model or findings.errors(spec):
        return ()
    found = recomputation.least(spec, own)
    say(f"launch: {synonyms.AUTO} is {found.said}")
    return found.words


def memory_engine(engine: Engine) -> Refinement | None:
    """The memory engine beside the formulas; None where these alone are wanted."""
    if engine != "trace":
        return None
    from launcher.preflight import traced  # Late, because the formulas need none of what it imports.

    return traced.traced


def own_measurements(*, wanted: bool, anchor: str | None = None, cluster: ClusterSpec | None = None) -> Measured | None:
    """The user's measured runs, and the cluster's where one is given; None unless they are wanted.

    With ``anchor`` it is what that run says of runs like it, and they of the others.
    """
    if anchor is not None:
        from launcher.actions.find_runs import named  # Late, because few commands read a run.
        from launcher.rundir import measured_run

        return measured_run.anchored(named([anchor]).runs[0], anchor, others=wanted)
    own = Measured() if wanted else None
    if own is not None and cluster is not None:
        own.read(cluster)
        own.tell(say)
    return own


def judge_run(found: Request, judging: Judging, *, resumed: bool = False) -> Assessment:
    """Judge a request and look at its data; errors of its words stand first, obstacles of this machine last.

    A run that is ``resumed`` goes on from a checkpoint of its own, and ``save.load`` is not looked at. Raises
    ConfigErrors where nothing could be read that could be judged.
    """
    if found.spec is None:
        raise ConfigErrors(found.errors)
    spec, missing = (found.spec, ()) if resumed else _resolve_load(found.spec)
    judged = assess_here(spec, judging, earlier=(*found.errors, *missing))
    if judging.measured is not None:
        judging.measured.tell(say)
    catalog = Catalog(folder=folder())
    return replace(
        judged,
        errors=_tried(found, spec, choices.leaving(found.backend, judged.errors, catalog), catalog),
        warnings=choices.leaving(found.backend, (*found.warnings, *judged.warnings), catalog),
        rehearsed=None if judged.errors else evidence.read(spec),
    )


def _tried(found: Request, spec: RunSpec, errors: tuple[ConfigError, ...], catalog: Catalog) -> tuple[ConfigError, ...]:
    """The errors without ways out that lead to others, all where each does; by a typed key what that would outdo."""
    known = {error.path for error in errors}

    def typed(way: str, *but: str) -> Request:
        left = {word.partition("=")[0] for word in way.split()} | {*but}
        kept = [word for word in found.overrides if word.partition("=")[0] not in left]
        return request_of(CommandLine(words=(*kept, *way.split()), catalog=catalog))

    def is_sound(way: str, path: str) -> bool:
        if any("=" not in word for word in way.split()) or way.startswith("script=") or not findings.is_readable(way):
            return True
        changed = applied(spec, way)
        after = typed(way) if changed is None else replace(found, spec=changed, errors=())
        left = {error.path for error in (*after.errors, *(findings.errors(after.spec) if after.spec else ()))}
        return left <= known - {path}

    def by_key(way: str, path: str) -> str:
        is_preset = path in known_keys() and way.partition("=")[0] == path.partition(".")[0]
        after = typed(way, path).spec if is_preset else None
        return way if after is None else edit.override(path, edit.value_at(after, path))

    tried = []
    for error in errors:
        sound = [way for way in error.way_out if is_sound(way, error.path)]
        if not sound and any(word.startswith(f"{error.path}=") for word in found.overrides):
            ways = dict.fromkeys(by_key(way, error.path) for way in error.way_out)
            sound = [way for way in ways if is_sound(way, error.path)]
        tried.append(ConfigError(error.path, error.found, error.rule, sound or error.way_out))
    return tuple(tried)


def _resolve_load(spec: RunSpec) -> tuple[RunSpec, tuple[ConfigError, ...]]:
    if spec.save.load is None and spec.model.weights is None:
        return spec, ()
    from launcher.rundir import loading  # Late, because few runs start from another's checkpoint.

    found = loading.resolved(spec, folder())
    for line in found.said:
        say(f"launch: {line}")
    return found.spec, found.errors


def draw_figure(path: Path | None, assessment: Assessment) -> None:
    """Draw the figure of a valid run with an estimate; ``path`` None draws none."""
    if path is None or assessment.errors:
        return
    if assessment.estimate is None:
        say(f"launch: {path} is not written: {not_named().rule}")
        return
    from launcher.views.check import plot  # Late, because few checks draw.

    plot.write(path, assessment, assess.broken_down(assessment.spec, assessment.estimate))
    say(f"launch: the figure is in {path}")


def write_new(
    path: Path, content: str | bytes, *, otherwise: str = "", before: Callable[[bytes], None] | None = None
) -> None:
    """Write a file that must not exist yet, with its folder, whole or not at all; raises SubmitError where it cannot.

    ``before`` is called with the bytes before the file appears: where it fails, no file does. ``otherwise`` is another
    way for the user where it exists, for the message.
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


def folder() -> Path:
    """The working folder."""
    return Path.cwd()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One answer in both forms."""

    document: JsonObject  # Of ``--json``.
    text: str  # For a terminal; empty prints nothing.
    exit_status: int = 0  # Of the command.
    said: tuple[str, ...] = ()  # Messages behind it, on stderr.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(JudgeRequest):
    """A question of layouts."""

    vary: tuple[str, ...] = ()  # Groups whose options are searched, too.
    unmeasured: bool = False  # Rank modes that nothing measured backs like the others.
    smallest: bool = False  # Ask for the fewest GPUs.
    largest: str | None = None  # Ask for the largest ``micro-batch``, ``sequence`` or ``model``.
    tokens: str | None = None  # Of the whole training, as typed: ``1T``.
    days: float | None = None  # The limit on its time.
    price: float | None = None  # Money of a GPU-hour.
    save: str | None = None  # Write the first layout as the recipe of this name.

    @property
    def words(self) -> tuple[str, ...]:
        """The words, with those that ``--tokens`` and ``--price`` are short for; ConfigErrors where both are there."""
        from launcher.planner import length  # Late, because only a plan asks for it.

        return (*self.overrides, *length.words(self.overrides, tokens=self.tokens, price=self.price))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest(PlanRequest):
    """A question of layouts, and how the best of them are measured."""

    measure: int | None = None  # How many; None measures none.
    steps: int | None = None  # Of each run.
    yes: bool = False  # Do not ask about the GPU-hours.
    dry_run: bool = False  # Show what would be started, and start nothing.
    ask: bool = False  # True where a person at the terminal may be asked.
