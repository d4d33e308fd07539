"""A disposable Slurm cluster on this machine, for developers."""
