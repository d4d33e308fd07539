"""Rules about the task: the backend that trains it, the data sets that it reads, and keys of other tasks."""

import itertools
from collections.abc import Iterator, Mapping

from launcher.base import registry
from launcher.base.errors import ConfigError
from launcher.spec import DataSpec, RunSpec, edit
from launcher.spec.training import PRETRAIN
from launcher.spec.values import set_names

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
"""The tasks that use each key."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors of a task that the backend does not train, of data of the wrong kind, and of unused keys."""
    yield from _data_sets(spec)
    name, backend = spec.task.name, spec.backend.name
    tasks: tuple[str, ...] = registry.load("backends", backend).profile.tasks
    if name not in tasks:
        rule = f"backend={backend} trains task={' or '.join(tasks)}"
        yield ConfigError("task.name", name, rule, [f"task={tasks[0]}", *_presets(name)])
        return
    yield from _idle(spec)
    yield from _data(spec)


def _presets(task: str) -> Iterator[str]:
    names = registry.shipped("backends")
    yield from (f"backend={name}" for name in names if task in registry.load("backends", name).profile.tasks)


def _idle(spec: RunSpec) -> Iterator[ConfigError]:
    if spec.task == PRETRAIN:
        return
    for key, tasks in READ.items():
        if spec.task.name not in tasks:
            rule = f"used only by task={' and '.join(tasks)}"
            yield from edit.refused(spec, f"task.{key}", rule, first=[f"task={task}" for task in tasks])


def _data(spec: RunSpec) -> Iterator[ConfigError]:
    source, columns = spec.data.source, spec.task.rows
    if spec.script is not None or (source == "rows") == bool(columns):
        return
    if columns:
        rule = f"task={spec.task.name} needs rows with the columns {', '.join(columns)}"
        yield ConfigError("data.source", source, rule, ["data=rows data.path=path/to/*.jsonl"])
        return
    rule = f"task={spec.task.name} trains on tokens, from conversations, text or token files"
    yield ConfigError("data.source", source, rule, [f"data=chat data.path={spec.data.path}", "task=dpo"])


_EXAMPLES = {
    "text": "path/to/*.txt",
    "chat": "path/to/*.jsonl",
    "tokens": "path/to/tokens.bin",
    "huggingface": "path/to/dataset",
    "rows": "path/to/*.jsonl",
}


_BESIDE = {
    "text": ("text", "huggingface"),
    "huggingface": ("text", "huggingface"),
    "chat": ("chat", "text", "huggingface"),
}
"""Sources that can be mixed, by ``data.source``; a text among conversations is one sample, trained in full."""


def _data_sets(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors of data that is not named, or named twice, and of data sets that cannot be mixed."""
    data = spec.data
    if data.source == "synthetic" or spec.script is not None:
        return
    if data.mix and data.path is not None:
        ways = ["data.path=null", "data.mix=[]"]
        yield ConfigError("data.mix", edit.plain(data.mix), "it replaces data.path, which is also set", ways)
    elif not data.path and not data.mix:
        rule = f"data.source={data.source} needs a path to read from"
        yield ConfigError("data.path", data.path, rule, [f"data.path={_EXAMPLES[data.source]}", "data=synthetic"])
    yield from _mix(spec)
    yield from _stages(spec)
    yield from _evaluation(data)


def _mix(spec: RunSpec) -> Iterator[ConfigError]:
    data = spec.data
    known = _BESIDE.get(data.source, (data.source,))
    for key, parts in (("mix", data.mix), ("eval_sets", data.eval_sets)):
        for place, part in enumerate(parts):
            source = part.source or data.source
            if source not in known:
                rule = f"with data.source={data.source} the source of a data set is {' or '.join(known)}"
                yield ConfigError(f"data.{key}.{place}.source", source, rule, [f"data={source}"])
                return
    if data.weights and len(data.weights) < len(data.mix):
        rule = "weights are shares of the samples: set all of them, or none, which sees each sample once"
        ways = ["data.mix=[{path: a, weight: 1}, {path: b, weight: 2}]"]
        yield ConfigError("data.mix", edit.plain(data.mix), rule, ways)
    elif (data.weights or data.stages) and not data.shuffle:
        rule = "without shuffling, data sets are read one after the other, whatever their weights"
        yield ConfigError("data.shuffle", False, rule, ["data.shuffle=true"])


def _stages(spec: RunSpec) -> Iterator[ConfigError]:
    data = spec.data
    if not data.stages or not data.mix:
        return
    if data.weights:
        rule = "each stage of data.stages has weights of its own"
        parts = [{key: value for key, value in part.said.items() if key != "weight"} for part in data.mix]
        yield ConfigError("data.mix", edit.plain(data.mix), rule, [edit.override("data.mix", parts), "data.stages=[]"])
    for place, stage in enumerate(data.stages):
        if len(stage.weights) != len(data.mix) or not any(stage.weights):
            rule = f"a weight for each of the {len(data.mix)} data sets of data.mix is needed, and one above 0"
            yield ConfigError(f"data.stages.{place}.weights", [*stage.weights], rule, ["data.stages=[]"])
    starts, end = [stage.after_tokens for stage in data.stages], spec.steps * spec.tokens_per_step
    if starts[0] or any(later <= earlier for earlier, later in itertools.pairwise(starts)):
        rule = "the first stage begins after 0 tokens, and each further one after more than the one before"
        yield ConfigError("data.stages", starts, rule, ["data.stages=[]"])
    elif starts[-1] >= end:
        rule = f"the run ends after {end} tokens, before this stage begins"
        yield ConfigError(f"data.stages.{len(starts) - 1}.after_tokens", starts[-1], rule,
                          [f"train.steps=null train.tokens={2 * starts[-1]}"])  # fmt: skip
    if spec.counts_epochs:
        rule = "a run in stages has no epoch to count: its length and intervals are steps or tokens"
        yield ConfigError("data.stages", starts, rule, ["data.stages=[]"])


def _evaluation(data: DataSpec) -> Iterator[ConfigError]:
    if data.eval_sets:
        yield from _named_sets(data)
    elif data.mix and data.eval_path is None and data.evaluated:
        key = "eval_split" if data.eval_split is not None else "eval_config"
        rule = "it is ambiguous with data.mix: name the data set to evaluate on"
        yield ConfigError(f"data.{key}", getattr(data, key), rule, [f"data.eval_path=path data.{key}=null"])


def _named_sets(data: DataSpec) -> Iterator[ConfigError]:
    for key in ("eval_path", "eval_split", "eval_config"):
        if getattr(data, key) is not None:
            rule = "data.eval_sets replaces it"
            yield ConfigError(f"data.{key}", getattr(data, key), rule, [f"data.{key}=null", "data.eval_sets=[]"])
    names = set_names(each.name for each in data.eval_sets)
    renamed = [{**each.said, "name": name} for each, name in zip(data.eval_sets, names, strict=True)]
    for place, each in enumerate(data.eval_sets):
        if each.name != names[place]:
            rule = "each data set needs a unique name: letters and digits, with _, . and - between them"
            way = edit.override("data.eval_sets", renamed)
            yield ConfigError(f"data.eval_sets.{place}.name", each.name, rule, [way])
