"""Backends of the memory model for frameworks that are only checked: no translation."""
