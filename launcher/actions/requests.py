"""From a command's options to a checked run: composed by :func:`compose_run`, checked by :func:`judge_run`."""

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
from launcher.preflight.fixes import Fix
from launcher.preflight.measured.known import Measured
from launcher.rules.model import not_named
from launcher.spec import ClusterSpec, RunSpec, edit
from launcher.spec.parse import applied, known_keys

type Engine = Literal["formula", "trace"]

_PARTIAL = "run.partial=true"  # The override that ``--partial`` stands for: a run started with it records it.


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """Options that several commands use to check a run."""

    overrides: tuple[str, ...] = ()  # The overrides of the run as typed.
    script_args: tuple[str, ...] = ()  # The words after ``--``.
    hf: Path | None = None  # Take the model from this folder or config.json.
    engine: Engine = "formula"  # Predict memory by formulas, or by tracing the worker with fake tensors.
    plot: Path | None = None  # Draw memory and time into this file.
    native: bool = True  # Also ask the engine's own validator.
    measured: bool = True  # Predict with what was measured on the cluster.
    anchor: str | None = None  # Predict runs like this measured one from its measurements.
    partial: bool = False  # Continue although settings of foreign files that matter are dropped.
    trust: bool = False  # Let files from elsewhere do what needs the user's consent.

    @property
    def typed(self) -> tuple[str, ...]:
        """The words, with ``model=PATH`` in front for ``--hf PATH``; ConfigErrors if they choose a model, too."""
        if self.hf is None:
            return self.overrides
        word = f"model={as_model(self.hf)}"
        models = [text for text in self.overrides if text.startswith("model=")]
        if models:
            rule = "--hf and this word both choose the model: use one of them"
            raise ConfigErrors([ConfigError("model", models[0].partition("=")[2], rule, [word])])
        return (word, *self.overrides)

    def command_line(self, further: Iterable[str] = ()) -> CommandLine:
        """The words, after those of other programs' files (``further``) and the override of ``--partial``."""
        words = (*further, *([_PARTIAL] if self.partial else []), *self.typed)
        return CommandLine(words=words, script_args=self.script_args, catalog=Catalog(folder=folder()))


def as_model(path: Path) -> str:
    """A path as ``model=`` takes it, not to be confused with an option or a Hub name."""
    from launcher.config.hub import repository as hub  # Late, because few commands need it.

    text = str(path)
    return text if is_own_model(text) and not hub.is_name(text) else f"./{text}"


def compose_run(line: CommandLine, own: Measured | None, facts: Machine | None = None) -> Request:
    """Compose the one run of a command line, with the best layout for ``plan=best``, without its recipe's sweep."""
    words, has_auto = synonyms.without_auto(line.words)
    line = line if words == line.words else replace(line, words=words)
    words, has_best = synonyms.without_best(words)
    if has_auto and not has_best:
        line = replace(line, words=(*words, *_least_recomputation(line, own)))
    if has_best:
        from launcher.actions.layout_search import choose_layout  # Late, because few command lines request a layout.

        line = replace(line, words=choose_layout(words, line.catalog, own))
    found = request_of(line, facts)
    if has_auto or has_best:
        found = replace(found, chosen=tuple(word for word in line.words if word not in words))
    if not found.errors and line.recipe is not None and line.recipe[1].sweep:
        axes = ", ".join(line.recipe[1].sweep)
        say(f"launch: this is one run, without the recipe's sweep of {axes}: -m runs that")
    return found


def _least_recomputation(line: CommandLine, own: Measured | None) -> tuple[str, ...]:
    """The words that replace ``checkpointing=auto``; none if the run is invalid whatever is recomputed."""
    from launcher.planner import recomputation  # Late, because few command lines use it.

    request = request_of(replace(line, words=(*line.words, "checkpointing=none")))
    spec = request.spec
    if spec is None or request.errors or spec.judges_no_model or findings.errors(spec):
        return ()
    found = recomputation.least(spec, own)
    say(f"launch: {synonyms.AUTO} is {found.said}")
    return found.words


def memory_engine(engine: Engine) -> Refinement | None:
    """The memory engine besides the formulas; None if only these are wanted."""
    if engine != "trace":
        return None
    from launcher.preflight import traced  # Late, because the formulas need none of what it imports.

    return traced.traced


def own_measurements(*, wanted: bool, anchor: str | None = None, cluster: ClusterSpec | None = None) -> Measured | None:
    """The user's measured runs, and the cluster's if one is given; None unless they are wanted.

    With ``anchor``, runs like that run are predicted from it and the others from the measured runs.
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
    """Check a request and its data; errors of its words come first, obstacles of this machine last.

    A ``resumed`` run continues from its own checkpoint, so ``save.load`` is not checked. Raises ConfigErrors if the
    words cannot be read as a run.
    """
    if found.spec is None:
        raise ConfigErrors(found.errors)
    spec, missing = (found.spec, ()) if resumed else _resolve_load(found.spec)
    judged = assess_here(spec, judging, earlier=(*found.errors, *missing))
    if judging.measured is not None:
        judging.measured.tell(say)
    return replace(
        judged,
        errors=_tried(found, spec, judged.errors, judged.errors),
        warnings=_tried(found, spec, (*found.warnings, *judged.warnings), judged.errors),
        fixes=tuple(_beside(found.chosen, fix) for fix in judged.fixes),
        nearest=judged.nearest and _beside(found.chosen, judged.nearest),
        rehearsed=None if judged.errors else evidence.read(spec),
    )


def _beside(chosen: tuple[str, ...], fix: Fix) -> Fix:
    """The fix with the overrides beside which it was judged, in place of the word that chose them."""
    said = {text.partition("=")[0] for text in fix.overrides}
    return replace(fix, overrides=(*(text for text in chosen if text.partition("=")[0] not in said), *fix.overrides))


def _tried(
    found: Request, spec: RunSpec, raised: tuple[ConfigError, ...], errors: tuple[ConfigError, ...]
) -> tuple[ConfigError, ...]:
    """Findings with only the ways out that cause no error; a preset that a typed key outdoes becomes that key."""
    catalog, known = Catalog(folder=folder()), {error.path for error in errors}

    def typed(way: str, *but: str) -> Request:
        left = {word.partition("=")[0] for word in way.split()} | {*but}
        kept = [word for word in found.overrides if word.partition("=")[0] not in left]
        return request_of(CommandLine(words=(*kept, *way.split()), catalog=catalog))

    def is_sound(way: str, path: str) -> bool:
        if any("=" not in word for word in way.split()) or way.startswith("script=") or not findings.is_readable(way):
            return True
        changed = applied(spec, way)
        after = typed(way, *({path} - known_keys())) if changed is None else replace(found, spec=changed, errors=())
        unread = after.errors if raised is errors else ()  # A warning may name a folder that is still to be filled in.
        left = {error.path for error in (*unread, *(findings.errors(after.spec) if after.spec else ()))}
        return left <= known - {path}

    def by_key(way: str, path: str) -> str:
        is_preset = path in known_keys() and way.partition("=")[0] == path.partition(".")[0]
        after = typed(way, path).spec if is_preset else None
        return way if after is None else edit.override(path, edit.value_at(after, path))

    tried = []
    for error in choices.keeping_backend(found.backend, raised, catalog):
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
    """Draw the figure of a valid run with an estimate; draws none if ``path`` is None."""
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
    """Write a file that must not exist yet, with its folder, whole or not at all; raises SubmitError if it cannot.

    ``before`` is called with the bytes before the file appears; if it fails, no file appears. ``otherwise`` is appended
    to the message if the file exists, and names another way.
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
    """One answer as a document and as text."""

    document: JsonObject  # For ``--json``.
    text: str  # For a terminal; empty prints nothing.
    exit_status: int = 0  # Exit status of the command.
    said: tuple[str, ...] = ()  # Messages after it, on stderr.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(JudgeRequest):
    """A search for layouts."""

    vary: tuple[str, ...] = ()  # Groups whose options are also searched.
    unmeasured: bool = False  # Rank modes without measured evidence like the others.
    smallest: bool = False  # Ask for the fewest GPUs.
    largest: str | None = None  # Ask for the largest ``micro-batch``, ``sequence`` or ``model``.
    tokens: str | None = None  # Tokens of the whole training, as typed: ``1T``.
    days: float | None = None  # Limit on its time, in days.
    price: float | None = None  # Price of a GPU-hour.
    save: str | None = None  # Write the first layout as a recipe of this name.

    @property
    def words(self) -> tuple[str, ...]:
        """The words, with those that ``--tokens`` and ``--price`` stand for; ConfigErrors if both are given."""
        from launcher.planner import length  # Late, because only a plan needs it.

        return (*self.overrides, *length.words(self.overrides, tokens=self.tokens, price=self.price))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest(PlanRequest):
    """A search for layouts, and how the best of them are measured."""

    measure: int | None = None  # Number of layouts to measure; None measures none.
    steps: int | None = None  # Steps of each run.
    yes: bool = False  # Do not ask for consent to the GPU-hours.
    dry_run: bool = False  # Show what would be started, and start nothing.
    ask: bool = False  # True if a person at the terminal can be asked.
