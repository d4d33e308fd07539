"""Sweeps: their points, the samplers that choose them, and the table of their results."""
