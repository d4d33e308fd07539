"""The planner against measured runs: ``python -m benchmarks.plan --data DIR [--json]``."""
