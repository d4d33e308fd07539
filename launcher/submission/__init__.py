"""Submits a recorded run to Slurm or starts it on this machine; the task that starts its job on a node."""
