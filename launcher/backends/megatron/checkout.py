"""Limits of ``pretrain_gpt.py`` of a Megatron-LM checkout (``backend.path``) that the launcher's worker has not."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit

_WORKER_ALONE: dict[str, object] = {"data.shuffle": True, "data.token_dtype": "uint16"}
"""Settings that only the worker reads, with the values at which they ask for nothing (conf/data/_base.yaml)."""

_WATCHED: dict[str, object] = {
    "train.on_hang": "report",
    "train.hang_factor": 10.0,
    "train.on_spike": "report",
    "train.spike_deviations": 7.0,
    "train.enforce_memory": False,
}
"""As that, of what needs the worker's heartbeat, its loss or its account of memory (conf/train/_base.yaml)."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Settings that a checkout's program would drop."""
    if spec.backend.path is None:
        return
    for path, neutral in _WORKER_ALONE.items():
        if (value := edit.value_at(spec, path)) != neutral:
            rule = "it is read by the launcher's worker; a checkout's pretrain_gpt.py shuffles its indexed data set"
            yield ConfigError(path, value, rule, [edit.override(path, neutral), "backend.path=null"])
    for path, neutral in _WATCHED.items():
        if (value := edit.value_at(spec, path)) != neutral:
            rule = "a checkout's pretrain_gpt.py trains by itself: only the launcher's worker is watched"
            yield ConfigError(path, value, rule, [edit.override(path, neutral), "backend.path=null"])


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Checkpoints that stay, and a start that is repeated."""
    if spec.backend.path is None:
        return
    if spec.save.every is not None and spec.steps // spec.save.every > spec.save.keep:
        rule = "a checkout's pretrain_gpt.py keeps every checkpoint"
        yield ConfigError("save.keep", spec.save.keep, rule, ["backend.path=null"])
    if spec.save.load is not None:
        rule = "a checkout's pretrain_gpt.py starts there again when the job is requeued or resumed"
        yield ConfigError("save.load", spec.save.load, rule, ["backend.path=null", "save.load=null"])
