"""Predicted against measured speed, and what the package ships of the measured tables."""
