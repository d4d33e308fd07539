"""The moments of a training step at which memory is counted, and every named set of them, once.

One step of one rank, from left to right, and what is alive when::

                    load | forward output loss | loss_    | *_backward of a block:  | root_    | clip step | idle
                         |                     | backward | last next second first  | backward |           |
    parameters      ==== | ======= ====== ==== | ======== | ==== ==== ====== =====  | ======== | ==== ==== | ====
    master weights  ==== | ======= ====== ==== | ======== | ==== ==== ====== =====  | ======== | ==== ==== | ====
    optimizer states     | ======= ====== ==== | ======== | ==== ==== ====== =====  | ======== | ==== ==== | ====
    saved activations    | ======= ====== ==== | ======== | a block less with each  |          |           |
    logits               |         ====== ==== | ======== |                         |          |           |
    one running block    | =======             |          | ==== ==== ====== =====  |          |           |
    gradient buffers     | ======= ====== ==== | ======== | ==== ==== ====== =====  | ======== | ==== ==== | ====
    fresh gradients      |                     |          | a block more with each  | ======== | ==== ==== |
    gathered weights     | ======= ====== ==== | ======== | ==== ==== ====== =====  | ======== |           |
    reduce buffers       |                     |          |      ==== ====== =====  | ======== |           |
    step's temporaries   |                     |          |                         |          |      ==== |

``forward`` is the last block of the last micro-batch in flight. ``output`` has the logits, while the weights that made
them are still gathered; ``loss`` the logits and their cross entropy. ``loss_backward`` is the gradient of the logits,
before any block's. ``block_backward`` is the backward pass of the block that runs first, the stage's last, while all
other activations are still held; ``next_block_backward`` that of the one before it, while the gradients of the last
are being reduced; ``second_layer_backward`` that of the stage's second block, the last one beside which another is
gathered ahead; ``first_layer_backward`` that of its first block, beside the gradients of all others. ``root_backward``
is the end of the backward pass, when all gradients exist. ``idle`` is between two steps.

Within the backward pass of one block, and while the model is loaded, memory is full at several instants that follow
each other: see ``instant`` of ``memory.terms.MemoryTerm``.
"""

from typing import Literal

type Phase = Literal["load", "forward", "backward", "optimizer", "checkpoint_save"]
type Moment = Literal[
    "load", "forward", "output", "loss", "loss_backward", "block_backward", "next_block_backward",
    "second_layer_backward", "first_layer_backward", "root_backward", "clip", "step", "idle", "checkpoint_save",
]  # fmt: skip
type Moments = frozenset[Moment]

PHASES: tuple[Phase, ...] = ("load", "forward", "backward", "optimizer", "checkpoint_save")

MOMENTS: dict[Moment, Phase] = {
    "load": "load",
    "forward": "forward",
    "output": "forward",
    "loss": "forward",
    "loss_backward": "backward",
    "block_backward": "backward",
    "next_block_backward": "backward",
    "second_layer_backward": "backward",
    "first_layer_backward": "backward",
    "root_backward": "backward",
    "clip": "optimizer",
    "step": "optimizer",
    "idle": "optimizer",
    "checkpoint_save": "checkpoint_save",
}
"""The candidates for the peak, in the order of a step, and the phase that each belongs to."""

ALWAYS: Moments = frozenset(MOMENTS)
LOAD: Moments = frozenset(("load",))
TRAINING: Moments = ALWAYS - LOAD  # From the first step on.
FORWARD: Moments = frozenset(("forward", "output", "loss"))
LOSS: Moments = frozenset(("output", "loss", "loss_backward"))
"""While the last norm's output and the logits are needed."""

BEFORE_BLOCKS_BACKWARD: Moments = FORWARD | {"loss_backward"}  # All that one micro-batch saves is there.
UNTIL_FIRST_GRADIENTS: Moments = BEFORE_BLOCKS_BACKWARD | {"block_backward"}
"""Before any block's gradients are complete."""

BLOCK_BACKWARD: Moments = frozenset((
    "block_backward",
    "next_block_backward",
    "second_layer_backward",
    "first_layer_backward",
))
"""The backward pass of one block runs; a checkpointed one has been recomputed."""

LATER_BLOCKS_BACKWARD: Moments = BLOCK_BACKWARD - {"block_backward"}
"""That of a block behind which another's gradients are complete already."""

BACKWARD_FROM_BLOCKS: Moments = BLOCK_BACKWARD | {"root_backward"}
"""From the first block's backward pass to the end of all."""

ROOT_BACKWARD: Moments = frozenset(("root_backward",))
SAVE: Moments = frozenset(("checkpoint_save",))
PASSES: Moments = BEFORE_BLOCKS_BACKWARD | BACKWARD_FROM_BLOCKS
"""Forward and backward: from the first micro-batch of a step to the end of its last."""

STEPPING: Moments = frozenset(("clip", "step"))
GRADIENTS_COMPLETE: Moments = STEPPING | {"root_backward"}
"""From the end of the backward pass to the end of the optimizer step."""

BETWEEN_PASSES: Moments = TRAINING - PASSES  # From the last backward pass of a step until the next step begins.
