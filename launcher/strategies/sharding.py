"""ZeRO, FSDP and Megatron's distributed optimizer: model states shared out among the data ranks (arXiv:1910.02054)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from launcher.rank import RankView, StateShares
from launcher.spec import RunSpec


def apply(view: RankView, spec: RunSpec) -> RankView:
    """What the rank keeps of parameters, gradients and optimizer states.

    FSDP keeps shards of all three whatever ``zero.stage`` says about resharding after forward. Routed experts have
    one data-parallel copy for ``world / (pipeline x expert x expert_tensor)`` ranks (Megatron-core ``parallel_state``).
    """
    stage = 3 if spec.parallel.shard else spec.zero.stage
    inside = spec.parallel.pipeline * spec.parallel.expert * (spec.parallel.expert_tensor or spec.parallel.tensor)
    expert_copies = max(1, spec.gpus // inside // spec.parallel.replicate)
    return replace(
        view,
        states=_narrowed(view.states, stage, max(1, spec.world.shard)),
        expert_states=_narrowed(view.expert_states, stage, expert_copies),
    )


def _narrowed(shares: StateShares, stage: int, ranks: int) -> StateShares:
    share = Fraction(1, ranks)
    return StateShares(
        parameters=shares.parameters * (share if stage >= 3 else 1),
        gradients=shares.gradients * (share if stage >= 2 else 1),
        optimizer=shares.optimizer * (share if stage >= 1 else 1),
    )
