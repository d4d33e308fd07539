"""What one rank of a run holds, and how long its step takes, as formulas; no framework is imported."""
