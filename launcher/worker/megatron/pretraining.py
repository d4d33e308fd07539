"""Megatron's own ``pretrain``, prepared, fed with samples and wrapped in hooks; shared by training and rehearsal."""

import functools
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from launcher.backends.megatron.installed import INSTALL, RANGE, found_version, is_supported
from launcher.worker import STOP_SIGNALS, TrainingError
from launcher.worker.engine import Context
from launcher.worker.megatron.validate import model_config

if TYPE_CHECKING:  # It imports Megatron, for which a machine without a GPU must be prepared first.
    from launcher.worker.megatron.follow import MegatronHooks


def prepare(context: Context) -> None:
    """Make Megatron importable, with a device and its bugs fixed; TrainingError if it is missing or unsupported."""
    found = found_version()
    if found is None:
        raise TrainingError(f"megatron-core is not installed for this Python: {INSTALL}")
    suits(found)
    if context.device.type == "cpu":
        from launcher.worker.megatron import cpu

        cpu.install()
    _repair()


def parse(arguments: Sequence[str]) -> Any:
    """Parse and validate the argument list as Megatron does, and make it stop at every stop signal."""
    from megatron.training.arguments import parse_and_validate_args

    sys.argv = [sys.argv[0], *arguments]
    try:
        args = parse_and_validate_args()
    except SystemExit as error:
        raise TrainingError("Megatron-LM refused its argument list; its message is in stderr.log") from error
    if args.exit_signal_handler:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.getsignal(args.exit_signal))
    return args


def pretrain(context: Context, args: Any, provider: Any, follower: "MegatronHooks") -> tuple[list[nn.Module], bool]:
    """Train to the last step; return this rank's model chunks, and True if the run was asked to stop before."""
    from megatron.core.enums import ModelType
    from megatron.training import training
    from megatron.training.argument_utils import pretrain_cfg_container_from_args

    from launcher.worker.megatron import layout

    chunks: list[nn.Module] = []

    def filled(made: list[nn.Module]) -> list[nn.Module]:
        chunks.extend(made)
        layout.fill(made, context)
        return made

    configuration = pretrain_cfg_container_from_args(args, model_config(args))
    configuration.model.pre_wrap_hooks.append(filled)
    with follower.following():
        try:
            training.pretrain(configuration, provider, ModelType.encoder_or_decoder, follower.forward_step)
        except SystemExit as ending:  # Megatron was asked to stop: it saved, and exits.
            if ending.code:
                text = f"Megatron-LM exited with status {ending.code}; its output is in the ranks' logs"
                raise TrainingError(text) from ending
            return chunks, follower.step < context.spec.steps
    return chunks, False


def suits(found: str) -> None:
    """Raise TrainingError for a version of megatron-core outside the supported range."""
    if not is_supported(found):
        raise TrainingError(
            f"megatron-core {found} is installed, but launch drives the training loop only of versions {RANGE}: "
            f"{INSTALL}"
        )


@functools.cache
def _repair() -> None:
    from megatron.core.datasets import utils

    # ``pretrain`` would compile its index helpers with a Makefile that the wheel lacks; the wheel has them compiled.
    utils.compile_helpers = lambda: None
    if find_spec("transformer_engine") is None and find_spec("apex") is None:
        _steps_of_torch_adam()


def _steps_of_torch_adam() -> None:
    """Give each parameter its own step counter when a checkpoint of the distributed optimizer is saved and loaded.

    Without Transformer Engine and Apex the optimizer is torch's AdamW. Megatron requires its counters in a fresh
    optimizer, does not save them per parameter, and restores one shared tensor, which AdamW then advances once per
    parameter (``core/optimizer/distrib_optimizer.py``).
    """
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    owner: Any = DistributedOptimizer
    state_dict, load_state_dict = owner.state_dict, owner.load_state_dict
    set_states = owner._set_main_param_and_optimizer_states

    def begun(self: Any, *arguments: Any, **options: Any) -> Any:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if not self.optimizer.state[parameter]:
                    zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    self.optimizer.state[parameter] = {"step": torch.tensor(0.0), **zeros}
        return state_dict(self, *arguments, **options)

    def separated(self: Any, content: Any) -> None:
        load_state_dict(self, content)
        for state in self.optimizer.state.values():
            if "step" in state:
                state["step"] = state["step"].clone()

    def kept(self: Any, parameter: Any, tensors: dict[str, torch.Tensor]) -> Any:
        group, order = self.model_param_group_index_map[parameter]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        if "step" in state and "step" not in tensors:
            tensors = {**tensors, "step": state["step"].clone()}
        return set_states(self, parameter, tensors)

    owner.state_dict, owner.load_state_dict, owner._set_main_param_and_optimizer_states = begun, separated, kept
