"""The fsdp backend; ``launcher.backends`` says what a backend offers."""

from __future__ import annotations

from launcher.backends._shared import no_obstacles as obstacles
from launcher.backends._shared import no_validator as native
from launcher.backends._shared import nothing_unreadable as unreadable
from launcher.backends.fsdp.check import check, warnings
from launcher.backends.fsdp.dtypes import dtypes
from launcher.backends.fsdp.overheads import overheads
from launcher.backends.fsdp.profile import changes, framework, fullest_rank, profile, runs_on
from launcher.backends.fsdp.traits import engine, execution
from launcher.backends.fsdp.translate import translate

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
