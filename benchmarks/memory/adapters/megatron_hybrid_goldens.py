"""Hybrids of Megatron-LM's functional tests, whose layers are letters; imported and measured as the other tests are."""

from __future__ import annotations

from benchmarks.memory.adapters.megatron_goldens import rows

__all__ = ["rows"]
