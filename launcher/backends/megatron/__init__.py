"""The megatron backend; ``launcher.backends`` says what a backend offers."""

from __future__ import annotations

from launcher.backends.megatron.check import check, warnings
from launcher.backends.megatron.dtypes import dtypes
from launcher.backends.megatron.installed import obstacles
from launcher.backends.megatron.native import native
from launcher.backends.megatron.overheads import engine, overheads
from launcher.backends.megatron.translate import translate

__all__ = ["check", "dtypes", "engine", "native", "obstacles", "overheads", "translate", "warnings"]
