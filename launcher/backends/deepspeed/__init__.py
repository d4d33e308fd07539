"""The deepspeed backend; ``launcher.backends`` says what a backend offers."""

from __future__ import annotations

from launcher.backends.deepspeed.check import check, warnings
from launcher.backends.deepspeed.dtypes import dtypes
from launcher.backends.deepspeed.operators import obstacles
from launcher.backends.deepspeed.overheads import engine, overheads
from launcher.backends.deepspeed.translate import translate

__all__ = ["check", "dtypes", "engine", "obstacles", "overheads", "translate", "warnings"]
