"""Finds and checks the checkpoint that ``save.load`` names, before anything is queued.

The recorded run holds the folder that was found. A folder that this machine does not see is left to a Slurm job's
nodes.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from launcher import backends
from launcher.base import files
from launcher.base.errors import ConfigError
from launcher.base.frozen import dataclass
from launcher.preflight import stored
from launcher.rundir import contents, run_names, signature
from launcher.saved import checkpoints
from launcher.spec import RunSpec, edit

_LOOKED_AT = 20
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWithCheckpoint:
    """A run with the checkpoint that it starts from."""

    spec: RunSpec  # The run; ``save.load`` is a checkpoint's folder if one was found.
    errors: tuple[ConfigError, ...] = ()  # Why it cannot start from it.
    said: tuple[str, ...] = ()  # A sentence on what ``save.load`` resolved to.


def resolved(spec: RunSpec, folder: Path) -> RunWithCheckpoint:
    """Find the checkpoint that a run starts from, and check it and ``model.weights`` against the run."""
    if spec.script is not None:
        return RunWithCheckpoint(spec=spec)
    found = _checkpoint(spec, folder) if spec.save.load is not None else RunWithCheckpoint(spec=spec)
    return replace(found, errors=(*found.errors, *stored.weights(spec)))


def _checkpoint(spec: RunSpec, folder: Path) -> RunWithCheckpoint:
    word = spec.save.load or ""
    try:
        found = checkpoints.find(word, lambda name: _run(name, folder)).absolute()
    except run_names.Ambiguous as doubt:
        return RunWithCheckpoint(spec=spec, errors=(_several(word, doubt, folder),))
    except checkpoints.NoCheckpoint as error:
        here = any(Path(text).exists() for text in (word, word.rpartition("@")[0]) if text)
        if spec.cluster.kind == "slurm" and not here:
            return RunWithCheckpoint(spec=spec)  # A warning says that this machine does not see it.
        return RunWithCheckpoint(spec=spec, errors=(ConfigError("save.load", word, str(error), _ways(error, folder)),))
    there = checkpoints.state_of(found)
    resolved_spec = edit.changed(spec, "save.load", str(found))
    errors = (*checkpoints.obstacles(spec, there), *_steps_left(spec, there))
    before = contents.known_spec(found.parent.parent)  # Of the run that saved.
    if before is not None and before.backend.name == spec.backend.name:
        errors += tuple(backends.of(spec).unreadable(before, spec))
    if not any(error.path.startswith("model.") for error in errors):  # These errors say more than tensor shapes.
        errors += tuple(stored.checkpoint(spec, found))
    at = f" (step {there['step']})" if there.get("step") is not None else ""
    said = () if str(found) == word else (f"save.load={word} is {found}{at}",)
    return RunWithCheckpoint(spec=resolved_spec, errors=errors, said=said)


def foreign_pickles(spec: RunSpec) -> Iterator[ConfigError]:
    """An error for a foreign checkpoint whose files the engine's own code reads as pickles."""
    word = spec.save.load
    if word is None or spec.script is not None or not backends.of(spec).profile.unpickles or is_own(Path(word)):
        return
    rule = (
        f"{spec.backend.name} reads a checkpoint's files as pickles, which can run any code, and this one "
        "is not in a run that you have recorded"
    )
    yield ConfigError("save.load", word, rule, ["--trust", "save.load=null"])


def is_own(checkpoint: Path) -> bool:
    """True if a checkpoint is in a run that this user has recorded or trusted."""
    place = files.real(checkpoint)
    inside = (place, place.parent, place.parent.parent)
    run = next((folder for folder in inside if contents.exists(folder, contents.SPEC)), None)
    return any(map(signature.is_own, inside)) if run is None else signature.is_own(run)


def _run(name: str, folder: Path) -> Path | None:
    try:
        found = run_names.find([name], folder)
    except FileNotFoundError:
        return None
    return found[0] if len(found) == 1 else None


def _several(word: str, doubt: run_names.Ambiguous, folder: Path) -> ConfigError:
    which = word.removeprefix(doubt.name)
    ways = [f"save.load={run_names.name_of(path, folder)}{which}" for path in doubt.candidates]
    return ConfigError("save.load", word, f"{len(ways)} runs match this name, and launch does not guess", ways)


def _ways(error: checkpoints.NoCheckpoint, folder: Path) -> Iterator[str]:
    if error.ways:
        yield from (f"save.load={way}" for way in error.ways)
        return
    runs = [run for run in reversed(run_names.find([], folder)[-_LOOKED_AT:]) if checkpoints.whole_checkpoints(run)]
    yield from (f"save.load={run_names.name_of(run, folder)}" for run in runs[:_SHOWN])
    yield "save.load=null"


def _steps_left(spec: RunSpec, there: dict[str, object]) -> Iterator[ConfigError]:
    step = there.get("step")
    if isinstance(step, int) and step >= spec.steps and spec.save.export == "none":
        rule = f"the checkpoint is of step {step}, and steps count from there: nothing would be trained"
        ways = [edit.length_override(spec, 2 * step), "save.load=null"]
        yield ConfigError(edit.length_key(spec), edit.length_value(spec), rule, ways)
