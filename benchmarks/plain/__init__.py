"""Training loops as one would write them by hand, to compare the workers with."""
