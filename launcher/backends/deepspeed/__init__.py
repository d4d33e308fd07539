"""The deepspeed backend; ``launcher.backends`` says what a backend offers."""

from __future__ import annotations

from launcher.backends._shared import no_validator as native
from launcher.backends.deepspeed.check import check, warnings
from launcher.backends.deepspeed.checkpoints import unreadable
from launcher.backends.deepspeed.dtypes import dtypes
from launcher.backends.deepspeed.operators import obstacles
from launcher.backends.deepspeed.overheads import overheads
from launcher.backends.deepspeed.profile import changes, framework, fullest_rank, profile, runs_on
from launcher.backends.deepspeed.traits import engine, execution
from launcher.backends.deepspeed.translate import translate

__all__ = [
    "changes",
    "check",
    "dtypes",
    "engine",
    "execution",
    "framework",
    "fullest_rank",
    "native",
    "obstacles",
    "overheads",
    "profile",
    "runs_on",
    "translate",
    "unreadable",
    "warnings",
]
