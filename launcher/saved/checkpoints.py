"""Checkpoints on disk: how to find them, what their metadata says, and whether a run may continue from one.

The worker's are folders ``step-00000100`` with a ``state.json``; Megatron-LM's are ``iter_0000100``, of which
``latest_checkpointed_iteration.txt`` names the newest complete one. Which samples a step has seen depends on the global
batch, the order and the samples, which ``state.json`` records, so that a run that would continue with others is
refused.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigError, LauncherError, typed
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.spec import RunSpec, edit

STATE = "state.json"
TRACKER = "latest_checkpointed_iteration.txt"
BEST = "best"
SCHEMA = 1
NOT_SIZES = frozenset(("name", "source", "weights", "attention", "dropout", "initializer_range", "trust_remote_code"))
"""Fields of the model that may differ between the run that saved and the run that loads."""

FRESH = "a new run can start from only its weights: launch resume RUN save.export=safetensors, model.weights=RUN/export"
_NOT_OF_ADAPTER = ("name", "dropout", "lora_plus")  # The name is among the sizes of every run; the others may change.
_BASE = f"it determines the stored base weights on which the adapter was trained; {FRESH}"
_ADAPTER = dict.fromkeys(("adapter.alpha", "adapter.rslora"), f"it scales what the adapter has learned; {FRESH}")
_ADAPTER |= dict.fromkeys(("adapter.quant_type", "adapter.double_quant"), _BASE)

PAUSED = Path("logs", "saving_paused.json")
"""Exists while saving is paused; in the run's ``logs/``, which may be on another disk than the checkpoints."""

_STEP = re.compile(r"step-(\d{8,})")
_ITERATION = re.compile(r"iter_(\d{7,})")
_SHOWN = 8  # The most checkpoints offered in a message, the newest ones.

type FindRun = Callable[[str], Path | None]
"""Maps a run's name or id to its directory; None if there is no such run."""


class NoCheckpoint(LauncherError):
    """A word names no checkpoint; ``ways`` are words that name one."""

    def __init__(self, rule: str, ways: tuple[str, ...] = ()) -> None:
        super().__init__(rule)
        self.ways = ways


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A complete checkpoint."""

    step: int
    path: Path


def whole_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """Return the complete checkpoints of a run directory, or of its folder ``checkpoints``, oldest first."""
    places = [place for place in (folder / "checkpoints", folder) if place.is_dir()]
    return next((found for place in places if (found := sorted(_whole(place), key=lambda each: each.step))), [])


def worker_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """Return the complete ``step-*`` of a folder, oldest first, without a ``.partial`` left by a killed run."""
    named = ((_STEP.fullmatch(path.name), path) for path in folder.glob("step-*"))
    found = (SavedCheckpoint(int(match[1]), path) for match, path in named if match and (path / STATE).is_file())
    return sorted(found, key=lambda each: each.step)


def _whole(folder: Path) -> Iterator[SavedCheckpoint]:
    yield from worker_checkpoints(folder)
    last = _newest_iteration(folder)
    for path in folder.glob("iter_*"):
        match = _ITERATION.fullmatch(path.name)
        if match and last is not None and int(match[1]) <= last:
            yield SavedCheckpoint(int(match[1]), path)


def _newest_iteration(folder: Path) -> int | None:
    """Megatron writes its tracker last, so a checkpoint newer than that is still being written."""
    try:
        return int(files.read_text(folder / TRACKER))
    except (OSError, ValueError):
        return None


def is_checkpoint(path: Path) -> bool:
    """True if a folder is a checkpoint: by Megatron-LM's name, or by a checkpoint's ``state.json``."""
    return path.is_dir() and (_ITERATION.fullmatch(path.name) is not None or "model" in state_of(path))


def state_of(checkpoint: Path) -> JsonObject:
    """Return a checkpoint's ``state.json``; empty if Megatron-LM wrote it without the launcher, or it is damaged."""
    try:
        content = files.load_json(checkpoint / STATE)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def find(word: str, run_of: FindRun) -> Path:
    """Return the checkpoint that a word of ``save.load`` names: a path or run, maybe with ``@step`` or ``@best``."""
    if is_checkpoint(Path(word)):
        return Path(word)
    name, at, which = word.rpartition("@")
    if (run := _run(word, run_of)) is not None:
        return _chosen(run, word, "")
    if at and (run := _run(name, run_of)) is not None:
        return _chosen(run, name, which)
    raise NoCheckpoint("is neither a run (directory, name or id) nor a checkpoint")


def _run(word: str, run_of: FindRun) -> Path | None:
    return Path(word) if Path(word).is_dir() else run_of(word)


def _chosen(run: Path, name: str, which: str) -> Path:
    found = whole_checkpoints(run)
    if not found:
        raise NoCheckpoint(f"has no complete checkpoint, neither in {run} nor in its folder checkpoints")
    if not which:
        return found[-1].path
    if which == BEST:
        return _best(run, name, found)
    if not which.isdecimal():
        rule = f"names no checkpoint after @: a step, or {BEST}"
    elif (chosen := next((each for each in found if str(each.step) == which.lstrip("0")), None)) is not None:
        return chosen.path
    else:
        rule = "has no complete checkpoint of this step"
    raise NoCheckpoint(f"{rule}; the run has steps {_steps(found)}", _words(name, found))


def _best(run: Path, name: str, found: list[SavedCheckpoint]) -> Path:
    losses = _evaluated(run if (run / "metrics.jsonl").is_file() else run.parent)
    judged = [(losses[each.step], each) for each in found if each.step in losses]
    if judged:
        return min(judged, key=lambda pair: pair[0])[1].path
    raise NoCheckpoint(
        f"has no step with both a checkpoint (steps {_steps(found)}) and a loss on held-out samples "
        "(train.eval_every and save.every set which have)",
        _words(name, found),
    )


def _steps(found: list[SavedCheckpoint]) -> str:
    return ", ".join(str(each.step) for each in found)


def _words(name: str, found: list[SavedCheckpoint]) -> tuple[str, ...]:
    return tuple(f"{name}@{each.step}" for each in found[-_SHOWN:])


def _evaluated(run: Path) -> dict[int, float]:
    losses = {}
    for row in files.json_objects(files.last_lines(run / "metrics.jsonl")):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            losses[int(row["step"])] = float(row["eval_loss"])
    return losses


def state_content(
    spec: RunSpec, step: int, *, samples: int | None = None, corpus: Mapping[str, Any] | None = None
) -> JsonObject:
    """Return the ``state.json`` of a checkpoint whose last step is ``step``; ``corpus`` identifies its samples.

    ``samples`` is the number of samples seen; None if the batch was the same in all steps.
    """
    return {
        "schema": SCHEMA,
        "step": step,
        "samples": step * spec.global_batch_size if samples is None else samples,
        "spec_hash": spec.hash,
        "global_batch_size": spec.global_batch_size,
        "sequence_length": spec.sequence_length,
        "seed": spec.train.seed,
        "shuffle": spec.data.shuffle,
        "corpus": dict(corpus or {}),
        "backend": spec.backend.name,
        "steps": spec.steps,
        "model": sizes(spec),
    }


def sizes(spec: RunSpec) -> JsonObject:
    """Return the settings that a checkpoint's tensors depend on: the model's sizes, the adapter and the optimizer."""
    found = {f"model.{key}": value for key, value in asdict(spec.model).items() if key not in NOT_SIZES}
    if spec.adapter.name != "none":
        kept = {key: value for key, value in asdict(spec.adapter).items() if key not in _NOT_OF_ADAPTER}
        found |= {f"adapter.{key}": list(value) if isinstance(value, tuple) else value for key, value in kept.items()}
    return {**found, "adapter.name": spec.adapter.name, "optimizer.name": spec.optimizer.name}


def obstacles(spec: RunSpec, state: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield reasons why a run cannot continue from a checkpoint with this ``state.json``, each with a way out."""
    if (there := state.get("backend", spec.backend.name)) != spec.backend.name:
        rule = f"the checkpoint was written by backend={there}, and an engine reads only its own; {FRESH}"
        yield ConfigError("backend.name", spec.backend.name, rule, [f"backend={there}"])
        return
    yield from _other_tensors(spec, state.get("model", {}))
    yield from _other_order(spec, state)
    yield from _other_batch(spec, state)


def _other_tensors(spec: RunSpec, there: Mapping[str, Any]) -> Iterator[ConfigError]:
    here = sizes(spec)
    other = [path for path, value in here.items() if path in there and there[path] != value]
    if "adapter.name" in other:  # Another adapter, or none: its own settings say nothing more.
        other = [path for path in other if path == "adapter.name" or not path.startswith("adapter.")]
    for path in other:
        rule = _ADAPTER.get(path, f"the checkpoint holds tensors of {path}={typed(there[path])}")
        yield ConfigError(path, here[path], rule, [edit.override(path, there[path])])


def _other_order(spec: RunSpec, state: Mapping[str, Any]) -> Iterator[ConfigError]:
    here = {
        "train.sequence_length": ("sequence_length", spec.sequence_length),
        "train.seed": ("seed", spec.train.seed),
        "data.shuffle": ("shuffle", spec.data.shuffle),
    }
    for path, (key, value) in here.items():
        if key in state and state[key] != value:
            rule = (
                f"the checkpoint's position in the data is based on {path}={typed(state[key])}: with another value "
                f"some samples would be repeated and others never seen; {FRESH}"
            )
            yield ConfigError(path, value, rule, [edit.override(path, state[key])])


def _other_batch(spec: RunSpec, state: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Another batch changes the training: it must be set explicitly; the position in the data counts samples."""
    there, here = state.get("global_batch_size", spec.global_batch_size), spec.global_batch_size
    if here == there or spec.train.global_batch_size is not None:
        return
    follows = "" if spec.train.gradient_accumulation is None else " train.gradient_accumulation=null"
    rule = (
        f"the checkpoint's run had {there} sequences per step, and without train.global_batch_size this one has "
        f"{here}, derived from its ranks: with the same learning rate the training would differ"
    )
    way = edit.override("train.global_batch_size", there) + follows
    yield ConfigError("train.global_batch_size", None, rule, [way])


def other_samples(spec: RunSpec, state: Mapping[str, Any], corpus: Mapping[str, Any]) -> str | None:
    """Return a sentence if this run's ``corpus`` differs from that of a checkpoint's ``state``; else None."""
    there = state.get("corpus") or {}
    if all(there[key] == corpus[key] for key in there.keys() & corpus.keys()):
        return None
    counts = f"{there.get('samples')} samples there and {corpus.get('samples')} here"
    if there.get("samples") == corpus.get("samples"):
        counts = f"{corpus.get('samples')} samples here too, but others"
    return (
        f"was trained on other data ({counts}): data.path={spec.data.path}, data.tokenizer, train.eval_every and "
        f"data.eval_fraction determine the samples, and a resumed run continues with the same ones; {FRESH}"
    )


def note_pause(run: Path, step: int, reason: str) -> None:
    """Record that the checkpoint of a step was skipped because the disk is full; the first such step is kept."""
    since = (files.read_json(run / PAUSED) or {}).get("since", step)
    files.write_atomically(run / PAUSED, {"since": since, "step": step, "reason": reason, "time": time.time()})


def end_pause(run: Path) -> None:
    """Remove the record of a pause: a checkpoint was written again, or the run has started anew."""
    (run / PAUSED).unlink(missing_ok=True)


def pause_text(run: Path) -> str | None:
    """Return one line about a run whose saving is paused; None for any other."""
    found = files.read_json(run / PAUSED)
    if found is None:
        return None
    since, reason = found.get("since"), found.get("reason")
    return f"saving has been paused since step {since}, and is tried again when the next is due: {reason}"
