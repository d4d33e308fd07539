"""Hostile and malformed input for every kind of file: ``python -m benchmarks.fuzz``."""
