"""Pages in one file of a run, of several runs, or of a sweep, and the charts on them."""
