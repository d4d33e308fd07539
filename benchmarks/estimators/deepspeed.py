"""DeepSpeed's own ``estimate_zero2_model_states_mem_needs`` and ``estimate_zero3_model_states_mem_needs``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from importlib.util import find_spec

from benchmarks.estimators import _run
from launcher.spec import RunSpec

SOURCE = (
    "imported from the installed deepspeed (runtime/zero/stage_1_and_2.py, runtime/zero/stage3.py): model states under"
    " ZeRO-2 and ZeRO-3 alone; no activations, no buckets, no gathered parameters beyond the largest module"
)


def predict(spec: RunSpec) -> int | None:
    """GPU bytes of the model states; None for other stages, model parallelism, adapters, NVMe, or no deepspeed."""
    zero = spec.zero
    offloads = (zero.offload_optimizer, zero.offload_parameters)
    covered = spec.backend.name == "deepspeed" and zero.stage in (2, 3) and "nvme" not in offloads
    plain = spec.adapter.name == "none" and spec.optimizer.name == "adamw" and spec.model_parallel == 1
    if not (covered and plain) or spec.precision.compute not in _run.SIXTEEN_BITS or find_spec("deepspeed") is None:
        return None
    if zero.stage == 2:
        return _zero2(spec)
    return _zero3(spec)


def _zero2(spec: RunSpec) -> int:
    with _quiet():
        from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    _, device = estimate_zero2_model_states_mem_needs(
        _run.parameters(spec),
        num_gpus_per_node=spec.cluster.gpus_per_node,
        num_nodes=spec.cluster.nodes,
        cpu_offload=spec.zero.offload_optimizer == "cpu",
    )
    return int(device)


def _zero3(spec: RunSpec) -> int:
    with _quiet():
        from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

    _, device, _ = estimate_zero3_model_states_mem_needs(
        _run.parameters(spec),
        _run.largest_module(spec),
        num_gpus_per_node=spec.cluster.gpus_per_node,
        num_nodes=spec.cluster.nodes,
        cpu_offload=spec.zero.offload_optimizer == "cpu",
        cpu_offload_params=spec.zero.offload_parameters == "cpu",
    )
    return int(device)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The import logs on stdout that there is no GPU; stdout belongs to the answer."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)
