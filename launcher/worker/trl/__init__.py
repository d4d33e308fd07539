"""TRL under the launcher: its trainers, started by torchrun and followed from outside."""
