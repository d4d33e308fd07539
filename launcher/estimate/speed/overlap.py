"""What a collective costs that runs beside compute: both are slower while both run."""

from __future__ import annotations

SLOWED = 1.13
"""Time of a kernel beside a collective, and of the collective, over that of each alone.

PKU-DAIR/Hetu-Galvatron@cea12ffb (Apache-2.0), ``overlap_coefficient.json``, measured. It is what a collective takes of
the card: 16 to 24 of 132 multiprocessors, 12 to 18% (NVIDIA-NeMo/Megatron-Bridge@067f987d, performance guide;
deepseek-ai/DeepEP@dd758caf), for which Calculon charges 15% on NVLink.
"""


def exposed(communication: float, window: float) -> float:
    """Seconds by which a collective lengthens the compute that it runs beside.

    While both run, each goes at ``1 / SLOWED`` of its speed: ``c - (2 - s) * min(c, w)``. Hidden whole it costs
    ``(s - 1) c``; what is left when the window closes runs alone.

    Args:
        communication: ``c``, seconds of the collective alone.
        window: ``w``, seconds of compute, alone, that it can run beside.
    """
    return communication - (2 - SLOWED) * min(communication, max(0.0, window))
