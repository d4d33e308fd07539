"""Buffers of NVMe offload: what DeepSpeed keeps in host memory to swap states and parameters through.

Its own defaults are a guess of a buffer's size (``runtime/zero/offload_config.py``); the translation says how large
they are, and ``backend.extra`` may say otherwise.
"""

from __future__ import annotations

from launcher.backends.deepspeed import options
from launcher.estimate.rank.engine import Swapping
from launcher.spec import RunSpec

_STEP = 2**20
"""Buffers are whole multiples of this many elements, so that their bytes keep the alignment of direct I/O."""

_STATES, _WEIGHTS = "offload_optimizer", "offload_param"
STATE_BUFFERS, PARAMETER_BUFFERS = 4, 5  # DeepSpeed's own defaults: ``buffer_count`` of either kind.


def swapping(spec: RunSpec) -> Swapping | None:
    """The buffers of a run that offloads to NVMe; None for any other."""
    if "nvme" not in (spec.zero.offload_optimizer, spec.zero.offload_parameters):
        return None
    return Swapping(
        state_buffers=_option(spec, f"{_STATES}.buffer_count", STATE_BUFFERS),
        parameter_buffers=_option(spec, f"{_WEIGHTS}.buffer_count", PARAMETER_BUFFERS),
        buffer_elements=_option(spec, f"{_WEIGHTS}.buffer_size", _elements(spec)),
        in_memory=_option(spec, f"{_WEIGHTS}.max_in_cpu", 0),
    )


def _option(spec: RunSpec, path: str, default: int) -> int:
    return int(options.read(spec.backend.extra, f"zero_optimization.{path}", default))


def _elements(spec: RunSpec) -> int:
    """Elements of one buffer: DeepSpeed demands that the largest parameter's share fits."""
    model = spec.model
    largest = model.hidden_size * max(
        model.vocab_size, model.intermediate_size, model.query_size, 2 * model.num_experts * model.moe_intermediate_size
    )
    share = -(-largest // spec.shard_degree)
    return -(-share // _STEP) * _STEP
