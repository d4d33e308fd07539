"""Model FLOPs utilisation: the model's operations over the card's peak during a step."""

from __future__ import annotations

from launcher.estimate.memory.result import ParameterCount
from launcher.spec import RunSpec

PEAKS = {
    "H200": 989.4e12,
    "H100 80GB HBM3": 989.4e12,
    "H100 PCIe": 756e12,
    "A100": 312e12,
}
"""Dense operations a second in 16 bits by a part of the card's name: NVIDIA's data sheets, whose larger figures for
Hopper are with sparsity."""


def of_step(spec: RunSpec, parameters: ParameterCount) -> float:
    """Operations of one step of one rank's micro-batches, recomputation not counted.

    ``(6 N + 12 L H Q T)`` a token (PaLM, arXiv:2204.02311, appendix B), N the parameters that a token meets. A table of
    tokens that is not the output head too is part of N although nothing is multiplied with it.
    """
    model = spec.model
    attention = 12 * model.num_hidden_layers * model.hidden_size * spec.sequence_length
    tokens = spec.micro_batch_size * spec.gradient_accumulation * spec.sequence_length
    return (6.0 * parameters.active + attention) * tokens


def utilisation(spec: RunSpec, parameters: ParameterCount, seconds: float, card: str) -> float | None:
    """The share of the card's peak; None where it is unknown or the formula does not hold.

    It does not hold for adapters, whose frozen weights get no gradients, for other formats than those of 16 bits, and
    for a rank of a larger world, whose collectives do nothing here.
    """
    peak = next((value for name, value in PEAKS.items() if name in card), None)
    if peak is None or spec.gpus > 1 or spec.adapter.name != "none" or spec.precision.compute not in ("bf16", "fp16"):
        return None
    return round(of_step(spec, parameters) / seconds / peak, 4)
