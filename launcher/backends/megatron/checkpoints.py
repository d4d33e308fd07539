"""Checkpoints that Megatron-LM goes on from: it counts in steps of one batch; each of its optimizers has one form."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit

_KEPT = {
    "zero.stage": "each of its sharded optimizers has checkpoints of its own form",
    "precision.compute": "its optimizer keeps other copies of the weights for each number format",
    "train.global_batch_size": "its place in data and schedule is counted in steps of one batch",
}


def unreadable(before: RunSpec, after: RunSpec) -> Iterator[ConfigError]:
    """Settings that have to stay as they were when the checkpoint was written."""
    pairs = {
        "zero.stage": (before.zero.stage, after.zero.stage),
        "precision.compute": (before.precision.compute, after.precision.compute),
        "train.global_batch_size": (before.global_batch_size, after.global_batch_size),
    }
    for path, (was, now) in pairs.items():
        if was != now:
            rule = f"the checkpoint is of a run with {was}, and Megatron-LM cannot change it: {_KEPT[path]}"
            yield ConfigError(path, now, rule, [edit.override(path, was)])
