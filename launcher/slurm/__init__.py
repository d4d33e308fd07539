"""Slurm from the planning side: its commands, its partitions, its jobs. Nothing here imports submitit."""
