"""The deepspeed backend; ``launcher.backends`` says what a backend offers."""

from __future__ import annotations

from launcher.backends.deepspeed.dtypes import dtypes

__all__ = ["dtypes"]
