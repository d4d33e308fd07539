"""Memory of one rank and time of one step, as formulas; no framework is imported."""
