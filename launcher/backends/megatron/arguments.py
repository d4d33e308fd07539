"""The Megatron-LM argument list of a run: every choice spelt out, those of ``backend.extra`` in their places."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.backends.megatron import layout, network, training
from launcher.backends.megatron.implementation import implementation
from launcher.backends.megatron.network import Arguments, Value
from launcher.spec import RunSpec

_LOCAL: Arguments = {
    "transformer-impl": "local",
    "no-gradient-accumulation-fusion": True,
    "no-masked-softmax-fusion": True,
    "no-persist-layer-norm": True,
    "no-rope-fusion": True,
}
"""Megatron-core's own modules in place of Transformer Engine's and Apex' kernels."""

_CPU: Arguments = {
    **_LOCAL,
    "use-cpu-initialization": True,
    "no-bias-swiglu-fusion": True,
    "no-bias-dropout-fusion": True,
    "disable-jit-fuser": True,
}
"""Arguments for the CPU, which also leave out all that is compiled for GPUs alone."""


def arguments(spec: RunSpec) -> Arguments:
    """All arguments by name; ``backend.extra`` replaces, adds, and with ``false`` or ``null`` takes away."""
    found = {**network.arguments(spec), **layout.arguments(spec), **training.arguments(spec)}
    if not implementation(spec).transformer_engine:
        found |= _LOCAL if spec.hardware.device == "cuda" else _CPU
    found |= {name(key): _value(value) for key, value in spec.backend.extra.items()}
    return {key: value for key, value in found.items() if value is not None and value is not False}


def argument_list(spec: RunSpec) -> tuple[str, ...]:
    """The words of the command line."""
    return tuple(_words(arguments(spec)))


def name(key: str) -> str:
    """An argument's name as Megatron-LM spells it: with dashes, without the two in front."""
    return key.lstrip("-").replace("_", "-")


def _value(value: object) -> Value:
    if isinstance(value, list | tuple):
        return tuple(item if isinstance(item, int) and not isinstance(item, bool) else str(item) for item in value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _words(found: Arguments) -> Iterator[str]:
    for key, value in found.items():
        yield f"--{key}"
        if isinstance(value, tuple):
            yield from map(str, value)
        elif value is not True:
            yield str(value)
