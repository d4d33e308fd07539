"""The ranks that share a sequence, as DeepSpeed's engine wants them: its groups, and its factor of the gradients."""

from __future__ import annotations

from typing import Any

from deepspeed.runtime.sequence_parallel import parallel_state_sp

from launcher.spec import RunSpec
from launcher.worker.engine import Context
from launcher.worker.model.ulysses import Ulysses


class Grouped(Ulysses):
    """The ranks that share a sequence; DeepSpeed asks ``mpu`` for their groups and sizes."""

    def __init__(self, context: Context) -> None:
        """Called by all ranks together, once DeepSpeed has started."""
        self.mpu: Any = parallel_state_sp
        parallel_state_sp.initialize_sequence_parallel(context.spec.parallel.ulysses)
        super().__init__(parallel_state_sp.get_sequence_parallel_group())


def excess(spec: RunSpec) -> int:
    """The factor of gradients of the mean loss that are too large once DeepSpeed 0.19.8 has reduced them.

    Stages 0 to 2 sum over the ranks of a sequence and average over the others (``runtime/zero/stage_1_and_2.py``),
    stage 3 averages over all (``reduce_scatter_coalesced``).
    """
    return spec.parallel.ulysses if spec.zero.stage < 3 else 1
