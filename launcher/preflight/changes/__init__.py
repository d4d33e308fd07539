"""The neighbours of a run: single changes that take less memory, the cheapest first, as data.

Each function gives the variants of one change, the weakest first, each as overrides and as the run that they make;
a test demands that pasting the overrides gives that very run. A change keeps the batch of an optimizer step wherever
it can, because another batch is another training.
"""

from __future__ import annotations

from launcher.preflight.changes import layout, settings
from launcher.spec.change import Change, Neighbour

__all__ = [
    "ANOTHER_TRAINING",
    "ELSEWHERE",
    "GIVES_UP",
    "NEIGHBOURS",
    "OF_PASSES",
    "ON_DISK",
    "TRAINS_OTHERS",
    "Change",
    "Neighbour",
]

NEIGHBOURS: tuple[Neighbour, ...] = (
    settings.fewer_checkpoints,
    settings.fewer_readers,
    settings.expandable_segments,
    settings.bucket_views,
    settings.fused_optimizer,
    layout.sequence_parallel,
    settings.smaller_buffers,
    settings.chunked_loss,
    settings.selective_checkpointing,
    settings.smaller_micro_batch,
    layout.sharding,
    layout.no_replicas,
    settings.bf16,
    settings.full_checkpointing,
    layout.sequence_ranks,
    layout.tensor_parallel,
    layout.pipeline_parallel,
    settings.eight_bit_optimizer,
    layout.offloaded_optimizer,
    layout.fewer_ranks,
    layout.offloaded_parameters,
    settings.last_checkpoint_only,
    settings.no_checkpoint,
    settings.low_rank_adapter,
    settings.shorter_sequences,
    layout.whole_node,
    layout.more_nodes,
)

ON_DISK: tuple[Neighbour, ...] = (
    settings.fewer_checkpoints,
    settings.last_checkpoint_only,
    settings.no_checkpoint,
)
"""Changes of what is kept on the disk, which are all that is tried where it alone is too small."""

GIVES_UP: dict[Neighbour, int] = {
    settings.last_checkpoint_only: 1,
    settings.no_checkpoint: 2,
    settings.low_rank_adapter: 3,
    settings.shorter_sequences: 3,
}
"""Changes that give up more than speed and numbers, and so stand behind all others, however fast they are."""

ELSEWHERE = frozenset({
    settings.fewer_checkpoints,
    settings.fewer_readers,
    settings.last_checkpoint_only,
    settings.no_checkpoint,
})
"""Changes of what is on a node's host and on the disk, which leave the device as it is."""

OF_PASSES = ELSEWHERE | {
    settings.chunked_loss,
    settings.selective_checkpointing,
    settings.smaller_micro_batch,
    settings.full_checkpointing,
    settings.shorter_sequences,
}
"""Those, and changes of what the passes of a step hold, which leave what is there between two steps."""

ANOTHER_TRAINING = frozenset({settings.low_rank_adapter, settings.shorter_sequences})
"""Changes that make it another training: alone they are not answer enough where two others together suffice."""

TRAINS_OTHERS = frozenset({settings.low_rank_adapter})
"""Changes after which other parameters are trained: no way on for a run that has begun to train its own."""
