"""Megatron-LM's functional tests of hybrid models, imported and measured like its other tests."""

from __future__ import annotations

from benchmarks.memory.adapters.megatron_goldens import rows

__all__ = ["rows"]
