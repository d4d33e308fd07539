"""Changes of a run's settings between two attempts, with a full history.

The run's files hold the newest settings. Earlier ones are kept in ``settings/<n>/``, and ``changes.json`` records which
keys had which values from which step on.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher import backends
from launcher.base import files
from launcher.base.errors import ConfigError, SubmitError
from launcher.base.files import JsonObject
from launcher.config import open_values
from launcher.preflight.plan import Plan
from launcher.rundir import contents, lock, provenance, results, signature
from launcher.rundir.lock import spec_differences
from launcher.rundir.record import job_as_dict, write_settings
from launcher.saved.checkpoints import FRESH, obstacles
from launcher.spec import RunSpec, edit

FILE = "changes.json"
KEPT = "settings"
_ALWAYS = ("spec.json", "plan.json", "job.json", contents.LOCK)

type Change = tuple[str, Any, Any]
"""A key, its value before and its value now."""


def write(run: Path, plan: Plan, changes: Sequence[Change], *, words: Sequence[str], step: int) -> None:
    """Replace a run's settings from ``step`` on, and keep the earlier ones. Raises SubmitError if it cannot."""
    before = contents.read(run, contents.PLAN) or {}
    overrides = (*_words_in_force(before.get("overrides", ()), words), *words)
    partial = run / f".{KEPT}.{os.getpid()}.partial"
    try:
        partial.mkdir()
        content = lock.build(plan, job_as_dict(plan.job), overrides)
        content["script"] = provenance.kept_script(run, plan.spec.script)
        lock.write(partial / contents.LOCK, content)
        write_settings(partial, run, plan, overrides, forced=bool(before.get("forced")))
        kept = _keep_settings(run, sorted({*_ALWAYS, *contents.known(run, contents.JOB).get("files", ())}))
        for path in sorted(partial.iterdir(), key=lambda path: path.name == "spec.json"):  # The worker reads this one.
            path.replace(run / path.name)
        results.add_losses(run)
        signature.note(run)
        entry: JsonObject = {"time": round(time.time(), 3), "step": step, "overrides": list(words)}
        listed = [{"path": path, "before": was, "after": now} for path, was, now in changes]
        entry |= {"changes": listed, "before": kept}
        files.write_atomically(run / FILE, {"schema": 1, "changes": [*read(run), entry]})
    except OSError as error:
        raise SubmitError(f"the run directory {run} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read(run: Path) -> list[JsonObject]:
    """The changes of a run, oldest first: ``time step overrides changes before``."""
    found: list[JsonObject] = (contents.read(run, FILE) or {}).get("changes", [])
    return found


def _words_in_force(earlier: Sequence[str], words: Sequence[str]) -> list[str]:
    """Earlier words that still apply to the run: new words set neither their key nor its group."""
    keys = {word.partition("=")[0].lstrip("+") for word in words}
    keys |= open_values.displaced_lengths((key, value) for key, _, value in (word.partition("=") for word in words))
    within = tuple(f"{key}." for key in keys)
    said = ((word, word.partition("=")[0].lstrip("+")) for word in earlier)
    return [word for word, key in said if key not in keys and not key.startswith(within)]


def _keep_settings(run: Path, names: Sequence[str]) -> str:
    (run / KEPT).mkdir(exist_ok=True)
    number = 1 + sum(1 for _ in (run / KEPT).iterdir())
    folder = run / KEPT / str(number)
    folder.mkdir()
    for name in names:
        if (run / name).is_file():
            shutil.copy2(run / name, folder / name)
    return f"{KEPT}/{number}"


_NOT_OF_MODEL = ("model.attention", "model.dropout", "model.trust_remote_code")
_NOT_OF_DATA = ("data.workers", "data.path")  # The same data may have moved: the worker compares the samples.


def refusals(before: RunSpec, after: RunSpec, step: int, there: dict[str, object]) -> Iterator[ConfigError]:
    """Changes that a resumed run cannot make, by its newest checkpoint's ``step`` and ``state.json`` (``there``)."""
    found = list(obstacles(after, there))
    if before.backend.name == after.backend.name:
        found += backends.of(after).unreadable(before, after)
    said = {error.path for error in found}
    for path, was, now in spec_differences(before, after):
        if path not in said and (reason := _reason(path)) is not None:
            found.append(ConfigError(path, now, reason, [edit.override(path, was)]))
    if before.evaluates != after.evaluates:
        rule = f"it determines whether samples are held out, and so which are trained on in which order; {FRESH}"
        way = edit.override("train.eval_every", before.train.eval_every)
        found.append(ConfigError("train.eval_every", after.train.eval_every, rule, [way]))
    if after.steps < step:
        rule = f"the run has already done {step} steps"
        way = edit.length_override(after, 2 * step)
        found.append(ConfigError(edit.length_key(after), edit.length_value(after), rule, [way]))
    yield from found


def allows(before: RunSpec, way_out: str) -> bool:
    """True if a resumed run takes these overrides, or if they undo a change that it refuses."""
    refused = [key for key, equal, _ in (word.partition("=") for word in way_out.split()) if equal and _reason(key)]
    return not refused or way_out in (edit.override(key, edit.value_at(before, key)) for key in refused if "." in key)


def _reason(path: str) -> str | None:
    group = path.partition(".")[0]
    if group == "model" and path not in _NOT_OF_MODEL:
        return f"the model comes from the run's own checkpoint, which this would not change; {FRESH}"
    if group == "data" and path not in _NOT_OF_DATA:
        return f"the run's position in the data counts these samples; {FRESH}"
    if path == "save.load":
        return "it continues from its own newest checkpoint: launch run --from RUN save.load=RUN@STEP starts another"
    return None
