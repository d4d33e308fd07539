"""The fsdp backend; ``launcher.backends`` says what a backend offers."""

from __future__ import annotations

from launcher.backends.fsdp.dtypes import dtypes
from launcher.backends.fsdp.overheads import engine, overheads

__all__ = ["dtypes", "engine", "overheads"]
