"""Documents that share a sample and are kept apart, in the workers that build classes of ``transformers``."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.backends._shared import ulysses_key_heads
from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.spec import RunSpec, edit


def masks_documents(spec: RunSpec) -> bool:
    """True if attention is given a mask; FlashAttention is told where documents begin by their positions."""
    return spec.data.packed == "documents" and spec.model.attention != "flash"


def key_heads(spec: RunSpec) -> int | None:
    """Heads that keys and values are copied to: all, beside a mask (transformers, ``use_gqa_in_sdpa``)."""
    return spec.model.num_attention_heads if masks_documents(spec) else ulysses_key_heads(spec)


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Documents are not kept apart where ranks share a sequence or its layers, nor by what has a state or a window."""
    if spec.data.packed != "documents":
        return
    ways = ["data.packing=null"]
    for axis in ("pipeline", "context", "ulysses"):
        degree = getattr(spec.parallel, axis)
        if degree > 1:
            rule = "over such ranks the worker does not keep documents apart, as data.packing=documents asks"
            yield ConfigError(f"parallel.{axis}", degree, rule, [f"parallel.{axis}=1", *ways])
    traits, layers = families.of(spec.model).traits, range(spec.model.num_hidden_layers)
    if traits.observed or not all(traits.attends(spec.model, layer) for layer in layers):
        rule = "a layer that is no attention may carry a state from one document to the next"
        yield ConfigError("data.packing", "documents", rule, ways)
    windows = (traits.window(spec.model, layer) for layer in layers)
    window = min((each for each in (*windows, spec.model.sliding_window) if each is not None), default=None)
    if window is not None and window < spec.sequence_length and spec.model.attention != "flash":
        rule = f"a window of {window} tokens is a mask of its own beside that of documents"
        yield ConfigError("data.packing", "documents", rule, [edit.override("train.sequence_length", window), *ways])
    if spec.model.attention == "flash" and spec.micro_batch_size > 1:
        rule = "FlashAttention finds documents by their positions in one sequence (transformers, _is_packed_sequence)"
        yield ConfigError("train.micro_batch_size", spec.micro_batch_size, rule, ["train.micro_batch_size=1", *ways])
