"""Backends of the memory model for frameworks that are only compared with: they translate no job."""
