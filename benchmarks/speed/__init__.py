"""Predicted speed against measured runs, and the fits behind its tables."""
