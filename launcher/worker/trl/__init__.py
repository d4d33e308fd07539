"""The worker of TRL: its trainers, started by torchrun, with the launcher's samples, checkpoints and metrics."""
