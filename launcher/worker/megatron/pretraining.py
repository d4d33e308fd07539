"""Megatron's own ``pretrain``, prepared, fed and followed: what a rank in training and one in rehearsal share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from launcher.worker.engine import Context
from launcher.worker.errors import TrainingError
from launcher.worker.megatron import start, versions

if TYPE_CHECKING:  # It imports Megatron, for which a machine without a GPU must be prepared first.
    from launcher.worker.megatron.follow import Follower


def prepare(context: Context) -> None:
    """Let Megatron be imported: it is installed, finds a device, and its faults are undone.

    Raises:
        TrainingError: It is not installed, or not in a version that is supported.
    """
    start.installed()
    if context.device.type == "cpu":
        from launcher.worker.megatron import cpu

        cpu.install()
    start.repair()


def parsed(arguments: Sequence[str]) -> Any:
    """The argument list as Megatron understands it.

    Raises:
        TrainingError: Its parser does not know an argument.
    """
    sys.argv = [sys.argv[0], *arguments]
    try:
        return versions.parsed()
    except SystemExit as error:
        raise TrainingError("Megatron-LM does not understand its argument list; its words are in stderr.log") from error


def pretrain(context: Context, args: Any, provider: Any, follower: Follower) -> tuple[list[nn.Module], bool]:
    """Train to the last step; this rank's parts of the model, and whether the run was asked to stop before that.

    Args:
        context: The rank.
        args: The answer of :func:`parsed`.
        provider: Megatron's ``train_valid_test_datasets_provider``.
        follower: What happens around Megatron's functions.
    """
    from launcher.worker.megatron import weights

    chunks: list[nn.Module] = []

    def filled(made: list[nn.Module]) -> list[nn.Module]:
        chunks.extend(made)
        weights.fill(made, context)
        return made

    with follower.following():
        interrupted = _asked_to_stop(args, filled, provider, follower) and follower.step < context.spec.steps
    return chunks, interrupted


def _asked_to_stop(args: Any, filled: versions.Fill, provider: Any, follower: Follower) -> bool:
    """Train; whether the run was asked to stop, after which Megatron saves and leaves."""
    try:
        versions.pretrain(args, filled, provider, follower.forward_step)
    except SystemExit as ending:
        if ending.code:
            raise TrainingError(
                f"Megatron-LM ended with status {ending.code}; its words are in the ranks' logs"
            ) from ending
        return True
    return False
