"""The task: the backend that trains it, the data that it reads, and keys that are another task's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher.base import registry
from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit
from launcher.spec.task import PRETRAIN

READ: Mapping[str, tuple[str, ...]] = {
    "beta": ("dpo", "kto", "grpo"),
    "loss": ("sft", "dpo", "kto", "grpo"),
    "label_smoothing": ("dpo",),
    "precompute_reference": ("dpo", "kto"),
    "desirable_weight": ("kto",),
    "undesirable_weight": ("kto",),
    "center_rewards": ("reward",),
    "generations": ("grpo",),
    "completion_length": ("grpo",),
    "temperature": ("grpo",),
    "rewards": ("grpo",),
    "vllm": ("grpo",),
}
"""The tasks that read each key."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Tasks and backends that do not go together, data of another kind, and idle keys."""
    name, backend = spec.task.name, spec.backend.name
    tasks: tuple[str, ...] = registry.load("backends", backend).profile.tasks
    if name not in tasks:
        rule = f"backend={backend} trains task={' or '.join(tasks)}"
        yield ConfigError("task.name", name, rule, [f"task={tasks[0]}", *_presets(name)])
        return
    yield from _idle(spec)
    yield from _data(spec)


def _presets(task: str) -> Iterator[str]:
    """The backends that train a task, as they are chosen."""
    names = registry.shipped("backends")
    yield from (f"backend={name}" for name in names if task in registry.load("backends", name).profile.tasks)


def _idle(spec: RunSpec) -> Iterator[ConfigError]:
    for key, tasks in READ.items():
        value, neutral = getattr(spec.task, key), getattr(PRETRAIN, key)
        if value != neutral and spec.task.name not in tasks:
            found = list(value) if isinstance(value, tuple) else value
            ways = [*(f"task={task}" for task in tasks), edit.override(f"task.{key}", neutral)]
            yield ConfigError(f"task.{key}", found, f"it is read by task={' and '.join(tasks)}", ways)


def _data(spec: RunSpec) -> Iterator[ConfigError]:
    """Tokens for pretraining and supervised fine-tuning, rows for the rest."""
    source, columns = spec.data.source, spec.task.rows
    if spec.script is not None or (source == "rows") == bool(columns):
        return
    if columns:
        rule = f"task={spec.task.name} reads rows with the columns {', '.join(columns)}"
        yield ConfigError("data.source", source, rule, ["data=rows data.path=path/to/*.jsonl"])
        return
    rule = f"task={spec.task.name} trains on tokens: of conversations, of text, or of token files"
    yield ConfigError("data.source", source, rule, [f"data=chat data.path={spec.data.path}", "task=dpo"])
