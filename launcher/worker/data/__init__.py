"""Training data: which samples a rank sees at which step is a pure function, so a step number is a position."""

from __future__ import annotations

from launcher.worker.data.batches import Batches, batches
from launcher.worker.data.order import Order, Position

__all__ = ["Batches", "Order", "Position", "batches"]
