"""The memory estimate against our own workers on one GPU: ``python -m benchmarks.gpu [--out FILE]``."""
