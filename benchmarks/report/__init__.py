"""Pages of runs in a real browser: what they cost to open, and their pictures in ``docs/``."""
