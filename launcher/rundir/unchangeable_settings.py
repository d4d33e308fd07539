"""Settings that a run keeps from its first step to its last: a resume may change all others.

What a checkpoint's tensors and its place in the data rest on cannot change (``launcher.saved.state``), nor what its
engine cannot read in another form (``unreadable`` of the backend). Beyond these a change is refused that would have no
effect on a resumed run, since nothing that is typed is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher import backends
from launcher.base.errors import ConfigError
from launcher.rundir.lock import spec_differences
from launcher.saved import state
from launcher.spec import RunSpec, edit, length

_FREE_OF_MODEL = ("model.attention", "model.dropout", "model.trust_remote_code")
_FREE_OF_DATA = ("data.workers", "data.path")
"""Where the same data lie now: the worker compares the samples."""

_ADAPTER = {
    "adapter.alpha": "what the adapter has learnt is scaled by it",
    "adapter.double_quant": "the base that the adapter has learnt beside is stored by it",
}


def refusals(before: RunSpec, after: RunSpec, step: int, there: dict[str, object]) -> Iterator[ConfigError]:
    """Changes that a resumed run cannot make, each with the reason and the way out.

    Args:
        before: The run as its newest checkpoint was written.
        after: The run as it is to go on.
        step: The checkpoint's.
        there: The checkpoint's ``state.json``.
    """
    found = list(state.obstacles(after, there))
    if before.backend.name == after.backend.name:
        found += backends.of(after).unreadable(before, after)
    said = {error.path for error in found}
    found += [error for error in _without_effect(before, after) if error.path not in said]
    if (before.train.eval_every is None) != (after.train.eval_every is None):
        rule = (
            f"it decides whether samples are held out, and so which ones are trained on, in which order; {state.FRESH}"
        )
        way = edit.override("train.eval_every", before.train.eval_every)
        found.append(ConfigError("train.eval_every", after.train.eval_every, rule, [way]))
    if after.steps < step:
        rule = f"the run has done {step} steps already"
        found.append(ConfigError(length.key(after), length.value(after), rule, [length.typed(after, 2 * step)]))
    yield from found


def _without_effect(before: RunSpec, after: RunSpec) -> Iterator[ConfigError]:
    for path, was, now in spec_differences(before, after):
        reason = _reason(path)
        if reason is not None:
            yield ConfigError(path, now, reason, [edit.override(path, was)])


def _reason(path: str) -> str | None:
    """Why a key cannot change between two attempts; None where it can."""
    group = path.partition(".")[0]
    if path in _ADAPTER:
        return f"{_ADAPTER[path]}; {state.FRESH}"
    if group == "model" and path not in _FREE_OF_MODEL:
        return f"the model comes from the run's own checkpoint, which this would not change; {state.FRESH}"
    if group == "data" and path not in _FREE_OF_DATA:
        return f"the run's place in the data is a place in these samples; {state.FRESH}"
    if path == "save.load":
        return "the run goes on from its own newest checkpoint: launch run --from RUN save.load=RUN@STEP starts another"
    return None
