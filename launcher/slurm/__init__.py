"""Slurm from the planning side: its commands, what it has, what became of jobs. Nothing here imports submitit."""
