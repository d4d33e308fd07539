"""``launch resume RUN KEY=VALUE``: a run continues with changed settings and the same training.

Everything else stays, including the global batch when the ranks change: it is then split into other micro-batches, or
the change is refused. Every difference is reported and recorded (``launcher.rundir.changes``) before submission.
"""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launcher.actions.requests import folder, judge_run
from launcher.actions.trust_gate import require_trust
from launcher.base import machine
from launcher.base.errors import ConfigError, ConfigErrors, DoesNotFit, SubmitError, raise_any, typed
from launcher.base.frozen import dataclass
from launcher.base.terminal import say, width
from launcher.config.catalog import Catalog
from launcher.config.request import CommandLine, Request, request
from launcher.estimate import families
from launcher.preflight import assess
from launcher.preflight.assess import Assessment
from launcher.preflight.assess_here import Judging
from launcher.preflight.measured.known import Measured
from launcher.preflight.plan import Plan, plan
from launcher.preflight.this_machine import obstacles
from launcher.rehearsing.choice import FILE as REHEARSAL
from launcher.rundir import changes, contents, loading, lock, run_names, status
from launcher.saved import checkpoints
from launcher.spec import RunSpec, edit
from launcher.spec.parse import parse, to_dict
from launcher.submission import interrupts, submit
from launcher.submission.submit import resubmit
from launcher.views.check.text import as_text

_WHOLE = ("model", "parallel", "backend", "recipe")
"""Groups whose options set too much to be chosen again; only their single keys can be set."""

_BATCH, _MICRO, _COUNT = "train.global_batch_size", "train.micro_batch_size", "train.gradient_accumulation"

_SCHEDULED = {
    *("train.steps", "train.tokens", "train.epochs", "optimizer.lr", "optimizer.schedule", "optimizer.decay_steps"),
    *("optimizer.warmup_ratio", "optimizer.wsd_decay_steps"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changed:
    before: RunSpec
    after: RunSpec
    words: tuple[str, ...]  # The words as typed, and those added to keep the training the same.


def submit_changed(directory: Path, texts: Sequence[str], *, trusted: bool) -> tuple[str, RunSpec]:
    """Submit a run again with changed settings; returns the job id and the run as it is now.

    ``trusted`` lets it start from a checkpoint from elsewhere that can run code when read. Raises ConfigErrors if it
    cannot continue this way, DoesNotFit, and SubmitError if it is queued or running or its submission failed.
    """
    name, found = run_names.name_of(directory, folder()), status.read(directory)
    if contents.exists(directory, REHEARSAL):
        rule = "it is the rehearsal of a run: start another with the run's own words"
        raise ConfigErrors([ConfigError("RUN", name, rule, ["launch rehearse"])])
    if found.state == "unreadable":
        raise SubmitError(f"{name} cannot continue: {found.reason}")
    if found.state in ("queued", "running", "requeued"):
        why = f" ({found.reason})" if found.reason else ""
        raise SubmitError(f"{name} is {found.state}: `launch cancel {name}` first, or wait for it to end{why}")
    directory = directory.absolute()
    with interrupts.let_through(), contextlib.chdir(submit.working_folder(directory, texts)):
        changed, then, step = _plan_change(directory, texts, trusted=trusted)
    differences = lock.spec_differences(changed.before, then.spec)
    _report(directory, differences, step)

    def record() -> None:
        if differences:
            with contextlib.chdir(submit.working_folder(directory, texts)):
                changes.write(directory, then, differences, words=changed.words, step=step)

    return resubmit(directory, then.spec, before=record), then.spec


def plan_changed(directory: Path, texts: Sequence[str], *, trusted: bool) -> Plan:
    """The plan of a run with changed settings, as :func:`submit_changed` would submit it; raises the same errors."""
    directory = directory.absolute()
    with contextlib.chdir(submit.working_folder(directory, texts)):
        return _plan_change(directory, texts, trusted=trusted)[1]


def _plan_change(directory: Path, texts: Sequence[str], *, trusted: bool) -> tuple[_Changed, Plan, int]:
    changed = _change(contents.spec_of(directory), texts, trusted=trusted)
    newest = next(reversed(checkpoints.whole_checkpoints(directory)), None)
    step = 0 if newest is None else newest.step
    changed = changed if newest is None else _keep_tokens(changed, checkpoints.state_of(newest.path))
    refused: list[ConfigError] = []
    if newest is not None and changed.after.script is None:
        refused += changes.refusals(changed.before, changed.after, step, checkpoints.state_of(newest.path))
        refused += _nothing_left(directory, changed.after, step)
    refused += _names(changed.before, changed.after)
    loads = [(spec.save.load, spec.backend.name) for spec in (changed.before, changed.after)]
    if newest is None and loads[0] != loads[1] and not trusted:
        refused += loading.foreign_pickles(changed.after)
    forced = bool(contents.known(directory, contents.PLAN).get("forced"))
    assessment = _judge(changed, refused, forced=forced, resumed=newest is not None)
    return changed, plan(assessment, python=sys.executable), step


def _change(before: RunSpec, texts: Sequence[str], *, trusted: bool) -> _Changed:
    line = CommandLine(words=tuple(texts), catalog=Catalog(folder=folder()))
    overrides = line.overrides
    if any(override.group for override in overrides):  # Their options are also composed from the user's conf/.
        require_trust(line, trusted=trusted)
    rule = "a recorded run has all settings fixed: set single keys of this group instead of choosing an option"
    whole = (override for override in overrides if override.group and override.key in _WHOLE)
    errors = (ConfigError(each.key, each.value, rule, [f"launch show {each.key}"]) for each in whole)
    raise_any([*line.errors, *errors])
    content: Any = to_dict(before)
    for override in overrides:
        if override.group:
            chosen: Any = to_dict(request([override.text]).require())
            content[override.key] = chosen[override.key]
    keys = [override for override in overrides if not override.group]
    lock.set_keys(content, keys, over="a recorded run")
    follows = _keep_batch(before, parse(content), {override.key for override in keys})
    for path, value in follows.items():
        group, _, key = path.partition(".")
        content[group][key] = value
    words = (*texts, *(edit.override(path, value) for path, value in follows.items()))
    return _Changed(before=before, after=families.with_targets(parse(content)), words=words)


def _keep_batch(before: RunSpec, after: RunSpec, typed: set[str]) -> dict[str, int | None]:
    """Settings that keep the global batch in the changed run, unless another was requested."""
    if _BATCH in typed or before.data_degree == after.data_degree:
        return {}
    batch, ranks = before.global_batch_size, after.data_degree
    if after.gpus % after.model_parallel == 0 and batch % ranks:
        uneven = f"{ranks} ranks cannot evenly split the run's global batch of {batch} sequences"
        rule = f"{uneven}, and another batch would change the training"
        divisors = [count for count in range(1, batch + 1) if batch % count == 0]
        whole = [count for count in divisors if count * after.model_parallel % after.cluster.nodes == 0]
        near = sorted(whole, key=lambda count: (abs(count - ranks), -count))[:3]
        ways = [f"cluster.gpus_per_node={count * after.model_parallel // after.cluster.nodes}" for count in near]
        raise ConfigErrors([ConfigError("cluster.gpus_per_node", after.cluster.gpus_per_node, rule, ways)])
    kept: dict[str, int | None] = {_BATCH: batch}
    if _COUNT in typed and after.train.gradient_accumulation is not None:
        kept |= {} if _MICRO in typed else {_MICRO: None}
    else:
        share, size = batch // ranks, after.train.micro_batch_size or before.micro_batch_size
        if _MICRO not in typed:
            size = next(smaller for smaller in range(size, 0, -1) if share % smaller == 0)
            kept[_MICRO] = size
        if after.train.gradient_accumulation is not None:
            kept[_COUNT] = share // size
    return {path: value for path, value in kept.items() if edit.value_at(after, path) != value}


def _keep_tokens(changed: _Changed, there: Mapping[str, Any]) -> _Changed:
    """Keep the total tokens if the steps so far, by the ``state.json`` ``there``, had another batch: set steps."""
    after = changed.after
    if after.train.tokens is None or "step" not in there or after.script is not None:
        return changed
    seen, step = int(there["samples"]), int(there["step"])
    if seen == step * after.global_batch_size:
        return changed
    left = max(0, after.train.tokens - seen * after.sequence_length)
    steps = step - (-left // after.tokens_per_step)
    others = [word for word in changed.words if word.partition("=")[0] != "train.tokens"]
    set_to = {"train.tokens": None, "train.steps": steps}
    return replace(changed, after=edit.changed_at(after, set_to), words=(*others, f"train.steps={steps}"))


def _nothing_left(directory: Path, after: RunSpec, step: int) -> list[ConfigError]:
    if status.read(directory).state != "finished" or after.steps != step or after.save.export != "none":
        return []
    rule = f"the run finished at step {step}: set more steps to continue it, or save.export=safetensors to export it"
    way_out = edit.length_override(after, 2 * step)
    return [ConfigError(edit.length_key(after), edit.length_value(after), rule, [way_out])]


def _names(before: RunSpec, after: RunSpec) -> list[ConfigError]:
    rule = "a resumed run stays in its own directory: `launch run --from RUN` starts a copy"
    groups = {"run": asdict(before.run), "sweep": asdict(before.sweep)}
    pairs = [(f"{group}.{key}", was) for group, content in groups.items() for key, was in content.items()]
    changed = [(path, was, now) for path, was in pairs if (now := edit.value_at(after, path)) != was]
    errors = [ConfigError(path, now, rule, [edit.override(path, was)]) for path, was, now in changed]
    if after.script != before.script:
        rule = "a resumed run uses its own copy of the script: `launch run --from RUN` starts a run with another"
        errors.append(ConfigError("script", after.script, rule, [edit.override("script", before.script)]))
    return errors


def _judge(changed: _Changed, refused: Sequence[ConfigError], *, forced: bool, resumed: bool) -> Assessment:
    request = Request(overrides=changed.words, spec=changed.after, errors=tuple(refused))
    refined = (lambda spec, formula: assess.estimated(assess.going_on(spec))) if resumed else None
    assessment = judge_run(request, Judging(refined=refined, measured=Measured()), resumed=resumed)
    lacks = obstacles(assessment.spec, machine.facts())
    errors = [*assessment.errors] or [error for error in lacks if error.path != "save.load" or not resumed]
    if resumed:  # It has its own checkpoint: save.load may be gone, and other data or another model would be refused.
        kept = [[way for way in error.way_out if changes.allows(changed.before, way)] for error in errors]
        errors = [ConfigError(was.path, was.found, was.rule, ways) for was, ways in zip(errors, kept, strict=True)]
    raise_any(errors)
    if assessment.verdict.name == "does_not_fit" and not forced:
        say(as_text(assessment, width()))
        raise DoesNotFit("not resumed, because it does not fit with these settings; the run is unchanged")
    return assessment


def _report(directory: Path, differences: Sequence[changes.Change], step: int) -> None:
    name = run_names.name_of(directory, folder())
    if not differences:
        say(f"launch: {name} already has these settings")
        return
    say(f"launch: {name} continues from step {step} with changed settings; earlier ones are kept in {changes.KEPT}/")
    for path, before, after in differences:
        say(f"  {path}: {typed(before)} -> {typed(after)}")
    if {path for path, _, _ in differences} & _SCHEDULED:
        say(f"  learning rates from step {step + 1} on follow the schedule with these settings")
