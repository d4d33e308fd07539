"""The memory estimate against measured runs: ``python -m benchmarks.memory --data DIR [--json]``."""
