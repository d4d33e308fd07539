"""Limits of Ulysses (``parallel.ulysses``) in the DeepSpeed worker, each with the way out."""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm
from typing import Any

from launcher.backends import _models
from launcher.backends.deepspeed.dtypes import dtypes
from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Another attention than the one that is given whole sequences, and groups of ranks that cross its own."""
    if spec.parallel.ulysses == 1:
        return
    yield from _models.shared_latents(spec, "parallel.ulysses")
    if spec.model.attention != "sdpa" and spec.script is None:
        rule = "between the exchanges of Ulysses runs torch's attention; another would see the tokens of one rank alone"
        way_out = ["model.attention=sdpa", "parallel.ulysses=1"]
        yield ConfigError("model.attention", spec.model.attention, rule, way_out)
    for path in ("parallel.tensor", "parallel.pipeline", "zero.hpz"):
        if (degree := edit.value_at(spec, path)) != 1:
            rule = "DeepSpeed's groups for it know nothing of ranks that share a sequence"
            yield ConfigError(path, degree, rule, [edit.override(path, 1), "parallel.ulysses=1"])


def key_heads(spec: RunSpec) -> int | None:
    """Heads of keys and values that are exchanged and saved: copied until the ranks divide them.

    ``lcm(heads, p)`` (``launcher/worker/deepspeed/ulysses.py``); of what is saved, all tokens of a ``p``-th of them are
    as many bytes as all of them of the rank's own tokens. Left out, because the MLP's tensors pass through memory at
    another time and are more: the buffers of an exchange (``deepspeed/sequence/layer.py``, ``single_all_to_all``).
    """
    degree = spec.parallel.ulysses
    return lcm(spec.model.key_value_heads, degree) if degree > 1 else None


def block(spec: RunSpec) -> dict[str, Any]:
    """Keys of ds_config.json; between ranks that share a sequence the format of gradients is fp32 by default."""
    return {
        "sequence_parallel_size": spec.parallel.ulysses,
        "seq_parallel_communication_data_type": dtypes(spec).reduce,
    }
