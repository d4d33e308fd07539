"""Hand-written training loops to compare the workers with."""
