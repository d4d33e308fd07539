"""The run directory: what is recorded of a run before and after it starts; every file whole or absent."""
