"""The megatron backend; ``launcher.backends`` says what a backend offers."""

from __future__ import annotations

from launcher.backends.megatron.check import check, warnings
from launcher.backends.megatron.checkpoints import unreadable
from launcher.backends.megatron.dtypes import dtypes
from launcher.backends.megatron.installed import obstacles
from launcher.backends.megatron.native import native, natives
from launcher.backends.megatron.overheads import overheads
from launcher.backends.megatron.profile import changes, framework, fullest_rank, profile, runs_on
from launcher.backends.megatron.traits import engine, execution
from launcher.backends.megatron.translate import translate

__all__ = [
    "changes",
    "check",
    "dtypes",
    "engine",
    "execution",
    "framework",
    "fullest_rank",
    "native",
    "natives",
    "obstacles",
    "overheads",
    "profile",
    "runs_on",
    "translate",
    "unreadable",
    "warnings",
]
