"""The moments of a training step at which memory is counted, and the named sets of them.

One step of one rank, from left to right, and what is alive at each moment::

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

``forward`` is the last block of the last micro-batch in flight. At ``output`` the logits exist while the weights that
made them are still gathered; at ``loss`` the logits and their cross entropy. ``loss_backward`` is the gradient of the
logits, before any block's. ``block_backward`` is the backward pass of the stage's last block, which runs first, while
all other activations are still held; ``next_block_backward`` that of the block before it, while the gradients of the
last are being reduced; ``second_layer_backward`` that of the stage's second block, the last during which another block
is prefetched; ``first_layer_backward`` that of its first block, beside the gradients of all others. ``root_backward``
is the end of the backward pass, when all gradients exist. ``idle`` is between two steps.

Within the backward pass of one block, and while the model is loaded, several instants follow each other, any of which
may be the fullest: see ``instant`` of ``memory.terms.MemoryTerm``.
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
"""The moments at which the peak may fall, in the order of a step, and the phase of each."""

ALWAYS: Moments = frozenset(MOMENTS)
LOAD: Moments = frozenset(("load",))
TRAINING: Moments = ALWAYS - LOAD  # From the first step onwards.
FORWARD: Moments = frozenset(("forward", "output", "loss"))
LOSS: Moments = frozenset(("output", "loss", "loss_backward"))
"""While the last norm's output and the logits are needed."""

BEFORE_BLOCKS_BACKWARD: Moments = FORWARD | {"loss_backward"}  # All activations of a micro-batch are held.
UNTIL_FIRST_GRADIENTS: Moments = BEFORE_BLOCKS_BACKWARD | {"block_backward"}
"""Before any block's gradients are complete."""

BLOCK_BACKWARD: Moments = frozenset((
    "block_backward",
    "next_block_backward",
    "second_layer_backward",
    "first_layer_backward",
))
"""The backward pass of one block, which has been recomputed if it is checkpointed."""

LATER_BLOCKS_BACKWARD: Moments = BLOCK_BACKWARD - {"block_backward"}
"""The backward pass of a block while the gradients of a later block are already complete."""

BACKWARD_FROM_BLOCKS: Moments = BLOCK_BACKWARD | {"root_backward"}
"""From the backward pass of the block that runs first to the end of the backward pass."""

ROOT_BACKWARD: Moments = frozenset(("root_backward",))
SAVE: Moments = frozenset(("checkpoint_save",))
PASSES: Moments = BEFORE_BLOCKS_BACKWARD | BACKWARD_FROM_BLOCKS
"""Forward and backward passes: from the first micro-batch of a step to the end of its last."""

STEPPING: Moments = frozenset(("clip", "step"))
GRADIENTS_COMPLETE: Moments = STEPPING | {"root_backward"}
"""From the end of the backward pass to the end of the optimizer step."""

BETWEEN_PASSES: Moments = TRAINING - PASSES  # From a step's last backward pass until the next step begins.
