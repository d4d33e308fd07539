"""Slurm on the planning side: its commands, partitions and jobs. Nothing here imports submitit."""
