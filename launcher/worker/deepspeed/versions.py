"""Differences between versions of DeepSpeed, asked of DeepSpeed itself, so that no other module asks for its version.

Versions that lack a whole feature are refused before the job starts (``launcher.backends.versions``).
"""

from __future__ import annotations

from typing import Any

from deepspeed.checkpoint import constants

AUTOTP_NOTE: str = getattr(constants, "DS_AUTOTP_UC_META", "ds_autotp_universal_checkpoint_meta")
"""AutoTP's note on a parameter that it has split; no parameter has one before DeepSpeed 0.18.9."""


def autotp_layout(model: Any) -> Any:
    """AutoTP's split of all parameters, as universal checkpoints keep it; DeepSpeed from 0.18.9."""
    from deepspeed.module_inject.layers import collect_autotp_universal_checkpoint_info

    return collect_autotp_universal_checkpoint_info(model)
