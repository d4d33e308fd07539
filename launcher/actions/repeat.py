"""Repeat a run from its lock and compare the results, and list the differences between two runs.

``recipe verify`` stops the repeated run when the locked steps are in its metrics, and compares losses and gradient
norms bit by bit; the schedule is the whole run's, so the first steps are the same.
"""

import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.actions.find_runs import refusal
from launcher.actions.requests import Output, folder
from launcher.actions.stop import stop
from launcher.base import machine
from launcher.base.errors import ConfigError, ConfigErrors, JobFailed, raise_any
from launcher.base.files import JsonObject
from launcher.base.terminal import say
from launcher.config import recipes
from launcher.config.catalog import Catalog
from launcher.config.overrides import read
from launcher.config.recipes import literal
from launcher.config.request import Request, request
from launcher.config.trust import privileged_settings
from launcher.config.trust import sources as trust
from launcher.config.trust.sources import Source
from launcher.preflight import assess, findings
from launcher.preflight.plan import plan
from launcher.preflight.this_machine import obstacles
from launcher.rundir import contents, loading, lock, provenance, results, run_names, state, status
from launcher.rundir.lock import Lock
from launcher.rundir.record import record
from launcher.rundir.run_names import Ambiguous
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at
from launcher.spec.training import ALONE
from launcher.submission import interrupts
from launcher.submission.submit import forget, submit

_POLL_S = 0.1  # Seconds between polls of the metrics of a verified run.
_SHOWN = 12  # Differences listed before the rest is counted, to fit one screen.


def request_of_lock(path: Path, texts: Sequence[str], *, trusted: bool) -> Request:
    """The request of ``launch run --from``: the lock's run with overridden keys; reports what differs here."""
    found = lock.read(_locate(path))
    _require_trust(found, texts, given=trusted)
    spec = _respecify(found, texts)
    for line in _differences_here(found, spec):
        say(f"launch: {line}")
    return Request(overrides=(f"--from={path}", *texts), spec=spec, errors=())


def _require_trust(found: Lock, texts: Sequence[str], *, given: bool) -> None:
    privileged = privileged_settings.of_spec(found.spec, [text.lstrip("+").partition("=")[0] for text in texts])
    trust.require([Source(path=found.path, privileged=privileged, written=True)], folder=folder(), given=given)


def _locate(path: Path) -> Path:
    named = folder() / "runs" / path
    if path.exists() or (named / contents.LOCK).is_file():
        return path if path.exists() else named
    try:
        [place, *_] = run_names.places(str(path), folder())
    except FileNotFoundError:
        return path
    except Ambiguous as doubt:
        raise ConfigErrors([refusal(doubt)]) from None
    return place if (place / contents.LOCK).is_file() else path


def _respecify(found: Lock, texts: Sequence[str]) -> RunSpec:
    overrides, errors = read(texts, Catalog(folder=folder()))
    raise_any(errors)
    return lock.respecified(found, overrides)


def _differences_here(found: Lock, spec: RunSpec) -> list[str]:
    differences = lock.spec_differences(found.spec, spec)
    here = {**lock.here(spec.data), "script": provenance.script_ingredient(spec.script)}
    differences += lock.differences(lock.ingredients(found.content), lock.ingredients(here))
    lines = [f"{key} was {_short(then)}, here {_short(now)}" for key, then, now in differences]
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"and {len(lines) - _SHOWN} more"]


def _short(value: object, nothing: str = "absent") -> str:
    text = nothing if value is None else " ".join((value if isinstance(value, str) else literal(value)).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def verify(path: Path, texts: Sequence[str], *, steps: int, trusted: bool) -> Output:
    """Run the first steps of a lock here and compare their losses; status 0 if they are bit-identical, else 5."""
    found = lock.read(_locate(path))
    _require_trust(found, texts, given=trusted)
    wanted = found.losses[:steps]
    spec = changed_at(_respecify(found, texts), ALONE)
    errors = [*findings.errors(spec), *obstacles(spec, machine.facts()), *_not_verifiable(found, spec, steps)]
    errors += [] if trusted else loading.foreign_pickles(spec)
    raise_any(errors)
    directory = folder() / "runs" / f"verify-{time.strftime('%Y%m%d-%H%M%S')}-{spec.hash[:6]}"
    directory, rows = _first_steps(spec, directory.absolute(), int(wanted[-1]["step"]))
    lines = _differences_here(found, spec)
    pairs = [_compare(here, locked) for here, locked in zip(rows, wanted, strict=False)]
    same = len(rows) >= len(wanted) and all(row["identical"] for row in pairs)
    kept = None if same else str(directory)
    content = {"identical": same, "steps": pairs, "ingredients": lines, "directory": kept}
    if same:
        shutil.rmtree(directory, ignore_errors=True)  # Its keeper removes the heartbeat after writing the end.
    return Output(
        document={"schema": 1, "recipe": content},
        text=_verdict_text(pairs, len(wanted), lines, same=same),
        exit_status=0 if same else JobFailed.exit_status,
        said=() if same else (f"launch: the run is kept in {directory}",),
    )


def _not_verifiable(found: Lock, spec: RunSpec, steps: int) -> list[ConfigError]:
    errors = []
    if steps < 1:
        errors.append(ConfigError("--steps", steps, "must compare at least one step", ["--steps 1"]))
    if not found.losses:
        rule = "the lock has no losses to compare with: its run had not ended when it was written"
        errors.append(ConfigError("LOCK", str(found.path), rule, ["launch recipe lock RUN"]))
    if spec.cluster.kind != "local":
        rule = "verify waits for the run, so it runs on this machine"
        errors.append(ConfigError("cluster.kind", spec.cluster.kind, rule, ["cluster.kind=local"]))
    return errors


def _first_steps(spec: RunSpec, directory: Path, last: int) -> tuple[Path, list[JsonObject]]:
    """Run until a step is in the metrics, then stop; returns the directory, numbered if taken, and the metrics."""
    planned = plan(assess.assess(spec), python=sys.executable)
    made_of = lock.here(spec.data, with_diff=spec.run.record_diff)
    with interrupts.held():
        directory = record(planned, directory, overrides=("recipe", "verify"), forced=False, made_of=made_of)
        try:
            submit(directory, spec)
            now = _wait_for_end(directory, last)
        except KeyboardInterrupt:  # The run does not receive it.
            forget(directory)
            if stop(directory, signal.SIGTERM):
                say(f"launch: interrupted; the run in {directory} was asked to end")
            raise
        finally:
            interrupts.note_ended(run_names.name_of(directory, folder()))
    rows = results.steps(directory)
    if now.state in ("failed", "lost") and (not rows or rows[-1]["step"] < last):
        raise JobFailed(f"{now.reason}; the run is kept in {directory}")
    return directory, rows


def _wait_for_end(directory: Path, last: int) -> status.RunState:
    asked = False
    while (now := status.read(directory)).state not in state.ENDED:
        steps = results.steps(directory)
        if not asked and steps and steps[-1]["step"] >= last:
            asked = stop(directory, signal.SIGTERM)
        interrupts.look()
        time.sleep(_POLL_S)
    return now


def _compare(here: JsonObject, locked: Mapping[str, Any]) -> JsonObject:
    pairs = [(here.get(key), locked[key]) for key in ("step", "loss", "grad_norm")]
    same = all(now == then or (now != now and then != then) for now, then in pairs)  # NaN equals NaN here.
    return {"step": here["step"], "loss": here["loss"], "locked_loss": locked["loss"], "identical": same}


def _verdict_text(rows: Sequence[Mapping[str, Any]], wanted: int, lines: Sequence[str], *, same: bool) -> str:
    if same:
        text = [f"the losses and gradient norms of the first {wanted} steps are identical to the last bit"]
        return "\n".join([*text, *(f"though {line}" for line in lines)])
    differing = [row for row in rows if not row["identical"]]
    text = [f"{len(differing)} of the first {wanted} steps differ:"]
    for row in differing[:_SHOWN]:
        relative = row["loss"] / row["locked_loss"] - 1 if row["locked_loss"] else float("nan")
        text.append(f"  step {row['step']}: loss {row['loss']!r}, locked {row['locked_loss']!r} ({relative:+.2e})")
    why = [f"  {line}" for line in lines] or ["  nothing recorded in a lock differs"]
    return "\n".join([*text, "what differs from the lock:", *why])


def diff(first: str, second: str) -> Output:
    """The settings that differ between two recipes, locks or runs."""
    (spec_a, parts_a), (spec_b, parts_b) = (_describe(name) for name in (first, second))
    rows = lock.spec_differences(spec_a, spec_b)
    settings = {key for key, _, _ in rows if key.count(".") <= 1}  # Deeper keys may be absent on one side.
    if parts_a is not None and parts_b is not None:
        rows += lock.differences(lock.ingredients(parts_a), lock.ingredients(parts_b))
    document = {"schema": 1, "recipe": [{"path": key, "first": a, "second": b} for key, a, b in rows]}
    nothing = {key: "null" if key in settings else "absent" for key, _, _ in rows}
    lines = [f"{key}: {_short(a, nothing[key])} -> {_short(b, nothing[key])}" for key, a, b in rows]
    return Output(document=document, text="\n".join(lines) or "no difference in meaning")


def _describe(name: str) -> tuple[RunSpec, Mapping[str, Any] | None]:
    for path in (folder() / "runs" / name, folder() / name):
        if lock.is_lock(path):
            found = lock.read(path)
            return found.spec, found.content
        if contents.exists(path, contents.SPEC):
            return contents.spec_of(path), None
    catalog = Catalog(folder=folder())
    recipes.load(catalog.recipe(name))
    return request([f"recipe={name}"], catalog=catalog).require(), None
