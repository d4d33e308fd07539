"""Formulas for the memory of one rank and the time of one step; no framework is imported."""
