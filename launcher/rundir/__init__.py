"""The run directory: the records of a run before and after it starts; every file is complete or absent."""
