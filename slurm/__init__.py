"""Slurm for developers: a throw-away cluster on this machine."""
