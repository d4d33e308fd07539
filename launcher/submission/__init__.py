"""Submission: a recorded run handed to Slurm or to this machine, and the task that starts its job on a node."""
