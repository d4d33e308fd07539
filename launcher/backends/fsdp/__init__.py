"""The fsdp backend; ``launcher.backends`` says what a backend offers."""

from __future__ import annotations

from launcher.backends.fsdp.check import check, warnings
from launcher.backends.fsdp.dtypes import dtypes
from launcher.backends.fsdp.overheads import engine, overheads
from launcher.backends.fsdp.translate import translate

__all__ = ["check", "dtypes", "engine", "overheads", "translate", "warnings"]
