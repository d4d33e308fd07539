"""The options that the installed DeepSpeed reads from its file, found by running its own reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

OF_THE_BATCH = {"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1}


class Asked(dict[str, Any]):
    """A file's content that records each key that is looked up."""

    def __init__(self, content: dict[str, Any], asked: set[str], prefix: str = "") -> None:
        super().__init__(content)
        self._asked, self._prefix = asked, prefix

    def __copy__(self) -> Asked:
        return self

    def __contains__(self, key: object) -> bool:
        self._asked.add(f"{self._prefix}{key}")
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self._asked.add(f"{self._prefix}{key}")
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value, as from any dictionary."""
        self._asked.add(f"{self._prefix}{key}")
        return super().get(key, default)

    def keys(self) -> Any:
        """The keys; a membership test counts as a look-up."""
        return self


_MODELS = {
    "zero_optimization": "zero_config",
    "bf16": "bfloat16_config",
    "fp16": "float16_config",
    "tensor_parallel": "tensor_parallel_config",
}
"""Blocks that are models with fields, and where a ``DeepSpeedConfig`` keeps each; older releases read keys singly."""


def defaults() -> dict[str, Any]:
    """Every option with its default; None for the keys of blocks that are read key by key."""
    from deepspeed.runtime.config import DeepSpeedConfig

    asked = set[str]()
    blocks = {name: Asked({}, asked, f"{name}.") for name in ("data_types", "aio", "bf16", "fp16")}
    config = DeepSpeedConfig(Asked({**OF_THE_BATCH, **blocks}, asked))
    found: dict[str, Any] = dict.fromkeys(asked)
    for block, place in _MODELS.items():
        model = type(getattr(config, place, None))
        found |= _fields(model, f"{block}.") if hasattr(model, "model_fields") else ()
    return found


def _fields(model: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """The options of a DeepSpeed model and of the models inside it."""
    for name, field in model.model_fields.items():
        inside = [each for each in (field.annotation, *get_args(field.annotation)) if hasattr(each, "model_fields")]
        if not inside:
            yield f"{prefix}{name}", field.get_default(call_default_factory=True)
        for each in inside:
            yield from _fields(each, f"{prefix}{name}.")
