"""The legend: what each symbol of a formula of speed stands for.

Single letters are those of the formulas of memory (``memory.symbols``) where both have them; times begin with
``t``.
"""

from __future__ import annotations

SYMBOLS: dict[str, str] = {
    "m": "micro-batches of an optimizer step",
    "L": "blocks on this rank",
    "P": "parameters of this rank that it is about",
    "P_opt": "parameters of this rank that the optimizer steps",
    "steps": "steps between two checkpoints",
    "p": "pipeline stages",
    "v": "model chunks of a stage, of interleaved schedules",
    "n": "how often in a step: reductions, passes over memory; of a step on the host the ranks that share it",
    "k": "bytes: of a parameter where it stands beside parameters, else of all that is moved",
    "z": "bytes of a parameter",
    # Work and rates.
    "work": "FLOPs of a micro-batch, or bytes of memory that it reads and writes",
    "rate": "of these what is done in a second: by the card at these shapes, or over PCIe",
    "bandwidth": "bytes a second of the card's memory",
    "share": "share of the bandwidth that such kernels reach",
    "reached": "bytes a second that the collective moves, at this size and among these ranks",
    "idle": "share of the others' time in which the schedule leaves a stage idle",
    "slowest": "by how much of a step the slowest of all GPUs is behind the middle one",
    # Times in seconds.
    "t": "seconds: of a micro-batch, or of a parameter where it stands beside parameters",
    "t_step": "seconds of the step without this wait",
    "t_loss": "seconds of the loss of a micro-batch",
    "t_again": "seconds of what is computed again in a micro-batch, or of gathering one block's parameters again",
    "t_host": "seconds of a micro-batch in which the GPU waits for the host to start kernels",
    "t_others": "seconds of a micro-batch's passes on all other stages",
    "t_send": "seconds of one message to the next stage",
    "t_gather": "seconds of gathering one block's parameters",
    "t_scatter": "seconds of reducing one block's gradients",
}
