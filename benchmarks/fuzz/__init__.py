"""Hostile and hapless input of every source: ``python -m benchmarks.fuzz``."""
