"""A rank of PyTorch FSDP2 or DDP, alone."""

from __future__ import annotations

from launcher.job.rehearsal import Rehearsed
from launcher.worker.fsdp.engine import build
from launcher.worker.rehearse import training
from launcher.worker.rehearse.rehearsal import Rehearsal


def rehearse(rehearsal: Rehearsal) -> Rehearsed:
    """Load and train the rank."""
    return training.rehearse(rehearsal, build)
