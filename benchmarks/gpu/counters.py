"""Counters of one rank on a GPU: those of ``memory.json``, and by phase also the reserved and used bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from launcher.estimate.memory.moments import Phase
from launcher.worker.memory import CudaTracker


class PhaseCounters(CudaTracker):
    """The allocator's and the driver's counters by phase."""

    def __init__(
        self,
        device: torch.device,
        heard: Callable[[Phase], None] = lambda phase: None,
        *,
        vocabulary: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(device, heard, vocabulary=vocabulary)
        self._card_by_phase: dict[str, int] = {}

    def summary(self) -> dict[str, Any]:
        """The entry of ``memory.json``, and what is reserved: its highest bytes by phase, the card's, and by stream."""
        more = {"reserved_by_phase": self.reserved_by_phase, "device_by_phase": self._card_by_phase}
        return {**super().summary(), **more, "segments": _segments(self._device)}

    def _look(self) -> None:
        if self._phase is not None:
            self._card_by_phase[self._phase] = max(self._card_by_phase.get(self._phase, 0), card(self._device))
        super()._look()


def _segments(device: torch.device) -> list[dict[str, Any]]:
    """Bytes and segments that torch's allocator has reserved, by stream and by pool."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for segment in torch.cuda.memory._snapshot()["segments"]:
        if segment["device"] == device.index:
            key = segment["stream"], segment["segment_type"]
            held = found.setdefault(
                key, {"stream": key[0], "pool": key[1], "bytes": 0, "active_bytes": 0, "segments": 0}
            )
            held["bytes"] += segment["total_size"]
            held["active_bytes"] += segment["active_size"]
            held["segments"] += 1
    return sorted(found.values(), key=lambda each: -int(each["bytes"]))


def card(device: torch.device) -> int:
    """Bytes in use on the whole card, from the driver: those of this process if nothing else uses the card."""
    free, total = torch.cuda.mem_get_info(device)
    return total - free
