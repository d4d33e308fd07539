"""Documentation that is generated from the code, so that the two cannot drift apart. A test compares the files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from launcher.base import registry
from launcher.estimate.rank.formats import Dtypes
from launcher.spec import RunSpec

_COLUMNS = ("parameters", "compute", "gradients", "accumulate", "master", "optimizer_states", "reduce")
_WORDS = ("fp32", "fp16", "bf16", "fp8")


def precision_table(spec: RunSpec) -> str:
    """The table of docs/engines.md with the meaning of each ``precision=`` word for each engine.

    Args:
        spec: Any run; only its backend, sharding and precision are varied.
    """
    engines: dict[str, RunSpec] = {}
    for name in registry.shipped("backends"):
        chosen = replace(spec, backend=replace(spec.backend, name=name))
        if name == "fsdp":
            engines["fsdp"] = replace(chosen, parallel=replace(spec.parallel, shard=True))
            engines["ddp (backend=fsdp)"] = replace(chosen, parallel=replace(spec.parallel, shard=False))
        elif name == "trl":
            engines["trl on FSDP2"] = replace(chosen, parallel=replace(spec.parallel, shard=True))
        else:
            engines[name] = chosen
    lines = [
        "| precision | engine | " + " | ".join(name.replace("_", " ") for name in _COLUMNS) + " |",
        "|---|---|" + "---|" * len(_COLUMNS),
    ]
    for word in _WORDS:
        alike: dict[str, list[str]] = {}
        for engine, chosen in engines.items():
            alike.setdefault(_cells(word, chosen), []).append(engine)
        lines += [f"| {word} | {', '.join(names)} | {cells} |" for cells, names in alike.items()]
    return "\n".join(lines) + "\n"


def _cells(word: str, spec: RunSpec) -> str:
    meaning: Callable[[RunSpec], Dtypes] = registry.load("backends", spec.backend.name).dtypes
    dtypes = meaning(replace(spec, precision=replace(spec.precision, compute=word)))  # type: ignore[arg-type]
    cells = [getattr(dtypes, column) or "none" for column in _COLUMNS]
    if dtypes.autocast:
        cells[1] += " (autocast)"
    return " | ".join(cells)
