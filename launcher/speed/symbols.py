"""The legend: what each symbol of a formula of speed stands for.

Single letters are those of the formulas of memory (``launcher.memory.symbols``); times begin with ``t``.
"""

from __future__ import annotations

SYMBOLS: dict[str, str] = {
    "m": "micro-batches of an optimizer step",
    "L": "blocks on this rank",
    "P": "parameters of this rank that it is about",
    "n": "passes over memory; of a step on the host, ranks that share it",
    "k": "bytes: of a parameter where it stands beside parameters, else of all that is moved",
    "z": "bytes of a parameter",
    # Work and rates.
    "work": "FLOPs of a micro-batch, or bytes of memory that it reads and writes",
    "rate": "of these what is done in a second: by the card at these shapes, or over PCIe",
    "bandwidth": "bytes a second of the card's memory",
    "share": "share of the bandwidth that such kernels reach",
    "reached": "bytes a second that the collective moves, at this size and among these ranks",
    # Times in seconds.
    "t": "seconds: of a micro-batch, or of a parameter where it stands beside parameters",
    "t_loss": "seconds of the loss of a micro-batch",
    "t_again": "seconds of what is computed again in a micro-batch",
    "t_host": "seconds of a micro-batch in which the GPU waits for the host to start kernels",
    "t_fill": "seconds in which the slowest stage waits until the pipeline is full, and again until it is empty",
    "t_send": "seconds of messages to and from the next stages",
    "t_step": "seconds of the step without this wait",
    "slowest": "by how much of a step the slowest of all GPUs is behind the middle one",
    "t_gather": "seconds of gathering one block's parameters",
    "t_scatter": "seconds of reducing one block's gradients",
}
