"""DeepSpeed-Ulysses (arXiv:2309.14509): a rank has some tokens of every sequence, and in attention some heads."""

from math import lcm
from typing import Any

import deepspeed
import torch
from deepspeed.runtime.sequence_parallel import parallel_state_sp
from deepspeed.sequence.layer import DistributedAttention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from launcher.spec import RunSpec


def connect(device: torch.device) -> None:
    """Start DeepSpeed's communication over torch's process groups, without its shared-memory allreduce on the CPU.

    That (``deepspeed_shm_comm``) would be compiled for minutes, and take 69 MB of /dev/shm per rank.
    """
    if device.type == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_init_required=False)


_BATCH, _TOKENS, _HEADS = 0, 1, 2  # Dimensions of the tensors that are exchanged: (batch, tokens, heads, head size).


class Ulysses:
    """One rank's view of the group that shares a sequence: its tokens, and attention over all tokens."""

    def __init__(self, group: torch.distributed.ProcessGroup) -> None:
        """Join a group; called by all of its ranks together, once ``deepspeed.comm`` has started."""
        self._degree, self._place = torch.distributed.get_world_size(group), torch.distributed.get_rank(group)
        self._exchanging: Any = DistributedAttention(_local, group, scatter_idx=_HEADS, gather_idx=_TOKENS)

    def share(self, *rows: torch.Tensor) -> list[torch.Tensor]:
        """This rank's tokens of rows of shape (batch, sequence)."""
        return [each.chunk(self._degree, dim=1)[self._place] for each in rows]

    def attention(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: object,
        dropout: float = 0.0,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """Compute causal attention over all tokens; ``transformers`` calls it with this rank's tokens.

        Key and value heads are repeated until their number is divisible by the ranks.
        """
        heads = key.shape[1]
        copies = lcm(heads, self._degree) // heads
        if copies > 1:
            key, value = (part.repeat_interleave(copies, dim=1) for part in (key, value))
        parts = (part.transpose(1, 2) for part in (query, key, value))
        found: torch.Tensor = self._exchanging(
            *parts, batch_dim_idx=_BATCH, module=module, dropout=dropout, scaling=scaling
        )
        return found, None


def _local(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, module: torch.nn.Module, **options: Any
) -> torch.Tensor:
    parts = (part.transpose(1, 2) for part in (query, key, value))
    found: torch.Tensor = sdpa_attention_forward(module, *parts, attention_mask=None, **options)[0]
    return found


def grouped(spec: RunSpec) -> Ulysses:
    """The ranks that share a sequence, in DeepSpeed's own groups; called by all ranks, once DeepSpeed has started."""
    parallel_state_sp.initialize_sequence_parallel(spec.parallel.ulysses)
    return Ulysses(parallel_state_sp.get_sequence_parallel_group())


def excess(spec: RunSpec) -> int:
    """The factor by which gradients of the mean loss are too large after DeepSpeed 0.19.8 reduced them.

    Stages 0 to 2 sum over the ranks of a sequence and average over the others (``runtime/zero/stage_1_and_2.py``),
    stage 3 averages over all (``reduce_scatter_coalesced``).
    """
    return spec.parallel.ulysses if spec.zero.stage < 3 else 1
