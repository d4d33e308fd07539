"""The checkpoints of a run, and the one that a word means: a run, ``RUN@step``, ``RUN@best``, a checkpoint itself.

The worker's checkpoints are folders ``step-00000100`` with a ``state.json``; Megatron-LM's are ``iter_0000100``, of
which the file ``latest_checkpointed_iteration.txt`` beside them names the newest whole one. A run directory has a
``state.json`` of its own, which is about the run and makes it no checkpoint.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.errors import LauncherError
from launcher.base.files import load_json, read_text

STATE = "state.json"
TRACKER = "latest_checkpointed_iteration.txt"
BEST = "best"

_STEP = re.compile(r"step-(\d{8,})")
_ITERATION = re.compile(r"iter_(\d{7,})")
_SHOWN = 8

type FindRun = Callable[[str], Path | None]
"""From a run's name or id to its directory; None where there is no such run."""


class NoCheckpoint(LauncherError):
    """No checkpoint is meant by a word.

    Attributes:
        ways: Words that mean one.
    """

    def __init__(self, rule: str, ways: tuple[str, ...] = ()) -> None:
        super().__init__(rule)
        self.ways = ways


@dataclass(frozen=True, slots=True)
class Saved:
    """A whole checkpoint."""

    step: int
    path: Path


def checkpoints(folder: Path) -> list[Saved]:
    """The whole checkpoints of a run directory, or of its folder ``checkpoints``, oldest first."""
    places = [place for place in (folder / "checkpoints", folder) if place.is_dir()]
    return next((found for place in places if (found := sorted(_whole(place), key=lambda each: each.step))), [])


def steps_of_the_worker(folder: Path) -> list[Saved]:
    """The whole ``step-*`` of a folder, oldest first; a ``.partial`` that a kill left behind is not among them."""
    named = ((_STEP.fullmatch(path.name), path) for path in folder.glob("step-*"))
    found = (Saved(int(match[1]), path) for match, path in named if match and (path / STATE).is_file())
    return sorted(found, key=lambda each: each.step)


def _whole(folder: Path) -> Iterator[Saved]:
    yield from steps_of_the_worker(folder)
    last = _newest_iteration(folder)
    for path in folder.glob("iter_*"):
        match = _ITERATION.fullmatch(path.name)
        if match and last is not None and int(match[1]) <= last:
            yield Saved(int(match[1]), path)


def _newest_iteration(folder: Path) -> int | None:
    """Megatron writes its tracker last, so a checkpoint that is newer than it is still being written."""
    try:
        return int(read_text(folder / TRACKER))
    except (OSError, ValueError):
        return None


def is_checkpoint(path: Path) -> bool:
    """True if a folder is one checkpoint: by Megatron-LM's name, or by a ``state.json`` that is a checkpoint's."""
    return path.is_dir() and (_ITERATION.fullmatch(path.name) is not None or "model" in state_of(path))


def state_of(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint's own description; nothing where Megatron-LM wrote it without the launcher, or it is damaged."""
    try:
        content = load_json(checkpoint / STATE)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def find(word: str, run_of: FindRun) -> Path:
    """The folder of the checkpoint that ``save.load`` means.

    Args:
        word: A checkpoint, a run's directory, name or id, or one of these with ``@step`` or ``@best`` behind it.
        run_of: Finds runs by name or id.

    Raises:
        NoCheckpoint: It means none; with the steps that there are.
    """
    if is_checkpoint(Path(word)):
        return Path(word)
    run = _run(word, run_of)
    name, at, which = word.rpartition("@")
    if run is None and at:
        run = _run(name, run_of)
    elif run is not None:
        name, which = word, ""
    if run is None:
        raise NoCheckpoint("is no run (by directory, name or id) and no checkpoint")
    return _chosen(run, name, which)


def _run(word: str, run_of: FindRun) -> Path | None:
    return Path(word) if Path(word).is_dir() else run_of(word)


def _chosen(run: Path, name: str, which: str) -> Path:
    found = checkpoints(run)
    if not found:
        raise NoCheckpoint(f"holds no whole checkpoint, neither in {run} nor in its folder checkpoints")
    if not which:
        return found[-1].path
    if which == BEST:
        return _best(run, name, found)
    chosen = [each.path for each in found if which.isdecimal() and str(each.step) == which.lstrip("0")]
    if chosen:
        return chosen[0]
    some = [f"{name}@{each.step}" for each in found[-_SHOWN:]]
    kind = (
        "has no whole checkpoint of this step"
        if which.isdecimal()
        else f"names no checkpoint after @: a step, or {BEST}"
    )
    raise NoCheckpoint(f"{kind}; the run has steps {', '.join(str(each.step) for each in found)}", tuple(some))


def _best(run: Path, name: str, found: list[Saved]) -> Path:
    """The checkpoint of the step whose loss on held-out samples is the lowest of those with a checkpoint."""
    losses = _evaluated(run if (run / "metrics.jsonl").is_file() else run.parent)
    judged = [(losses[each.step], each) for each in found if each.step in losses]
    if judged:
        return min(judged, key=lambda pair: pair[0])[1].path
    steps = ", ".join(str(each.step) for each in found)
    raise NoCheckpoint(
        f"has no step with both a checkpoint (steps {steps}) and a loss on held-out samples "
        "(train.eval_every and save.every decide which have)",
        tuple(f"{name}@{each.step}" for each in found[-_SHOWN:]),
    )


def _evaluated(run: Path) -> dict[int, float]:
    """The loss on held-out samples by step, from ``metrics.jsonl``."""
    losses = {}
    for row in files.json_objects(files.last_lines(run / "metrics.jsonl")):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            losses[int(row["step"])] = float(row["eval_loss"])
    return losses
