"""The data sets of a run: one or a mix of several, and one of its own for evaluations."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.spec import DataSpec, RunSpec, edit

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
"""Sources that can be mixed, by that of ``data``; a text beside conversations is one sample, all of it trained."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Data that nothing names, or that are named twice, and sets that are no mix."""
    data = spec.data
    if data.source == "synthetic" or spec.script is not None:
        return
    if data.mix and data.path is not None:
        ways = ["data.path=null", "data.mix=[]"]
        yield ConfigError("data.mix", edit.value_at(spec, "data.mix"), "it stands in place of data.path", ways)
    elif not data.path and not data.mix:
        rule = f"data.source={data.source} reads from it"
        yield ConfigError("data.path", data.path, rule, [f"data.path={_EXAMPLES[data.source]}", "data=synthetic"])
    yield from _mix(data)
    yield from _evaluation(data)


def _mix(data: DataSpec) -> Iterator[ConfigError]:
    for place, part in enumerate(data.mix):
        source = part.source or data.source
        known = _BESIDE.get(data.source, (data.source,))
        if source not in known:
            rule = f"beside data.source={data.source} a mix has sets of {' and '.join(known)}"
            yield ConfigError(f"data.mix.{place}.source", source, rule, [f"data={source}"])
            return
    if data.weights and len(data.weights) < len(data.mix):
        rule = "weights are shares of the samples: all data sets have one, or none has, and each sample is seen once"
        ways = ["data.mix=[{path: a, weight: 1}, {path: b, weight: 2}]"]
        yield ConfigError("data.mix", list(data.weights), rule, ways)
    elif data.weights and not data.shuffle:
        rule = "samples that are not shuffled come one data set after the other, whatever their weights are"
        yield ConfigError("data.shuffle", False, rule, ["data.shuffle=true"])


def _evaluation(data: DataSpec) -> Iterator[ConfigError]:
    if data.mix and data.eval_path is None and data.evaluated is not None:
        key = "eval_split" if data.eval_split is not None else "eval_config"
        rule = "of a mix nobody knows which data set is meant: name the one to evaluate on"
        yield ConfigError(f"data.{key}", getattr(data, key), rule, [f"data.eval_path=path data.{key}=null"])
