"""The memory estimate against launch's own workers on one GPU: ``python -m benchmarks.gpu [--out FILE]``."""
