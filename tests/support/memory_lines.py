"""Invariants of the lines of ``memory.jsonl``, for every engine."""

from __future__ import annotations

from pathlib import Path

from launcher.job.memory import MemoryRecord, records


def whole(directory: Path, *, ranks: int) -> list[MemoryRecord]:
    """The lines of a run that sampled its first steps on every rank; asserts that piles sum to the allocated bytes."""
    found = list(records(directory))
    assert {record.rank for record in found} == set(range(ranks))
    for record in found:
        for phase, peak in record.phases.items():
            assert sum(peak.piles.values()) == peak.allocated_bytes, (record.step, record.rank, phase)
    second = [record for record in found if record.step == 2 and record.static is not None]
    assert len(second) == ranks
    for record in second:
        assert record.static is not None
        assert {"forward", "backward", "optimizer"} <= record.phases.keys()
        assert {"parameters", "optimizer_states"} <= record.static.keys()
        assert record.phases["backward"].piles.get("activations", 0) > 0
    return found
