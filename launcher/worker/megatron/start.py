"""Preparations before Megatron's ``pretrain`` starts, and corrections of what megatron-core 0.17 to 0.19 get wrong."""

from __future__ import annotations

import functools
import signal
from importlib.util import find_spec
from typing import Any

import torch

from launcher.backends.megatron.installed import INSTALL, RANGE, found_version, is_supported
from launcher.worker.errors import TrainingError
from launcher.worker.stopping import STOP_SIGNALS


def installed() -> None:
    """Look for a megatron-core that this worker can drive.

    Raises:
        TrainingError: There is none, or one of another version.
    """
    found = found_version()
    if found is None:
        raise TrainingError(f"megatron-core is not installed for this Python: {INSTALL}")
    suits(found)


def suits(found: str) -> None:
    """Accept a version of megatron-core.

    Raises:
        TrainingError: It is out of the supported range.
    """
    if not is_supported(found):
        raise TrainingError(
            f"megatron-core {found} is installed, and this worker drives the training loop of the versions {RANGE}: "
            f"{INSTALL}"
        )


def listen(args: Any) -> None:
    """Let both signals ask for a stop, once Megatron has its handler: schedulers and torchrun send either."""
    if args.exit_signal_handler:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.getsignal(args.exit_signal))


@functools.cache
def repair() -> None:
    """Undo these faults, once and for the rest of the process."""
    _no_makefile()
    if find_spec("transformer_engine") is None and find_spec("apex") is None:
        _steps_of_torch_adam()


def _no_makefile() -> None:
    """``pretrain`` compiles its index helpers with a Makefile that the wheel lacks; it has them compiled already."""
    from megatron.core.datasets import utils

    utils.compile_helpers = lambda: None


def _steps_of_torch_adam() -> None:
    """Give each parameter its own step counter when a checkpoint of the distributed optimizer is saved and loaded.

    Without Transformer Engine and Apex the optimizer is torch's AdamW, which keeps a counter for each parameter. Its
    ``state_dict`` asserts that a fresh optimizer has one already; ``_set_main_param_and_optimizer_states`` reads it
    from a checkpoint that leaves it out; and ``load_state_dict`` puts one tensor into the state of all parameters,
    which AdamW then advances once for each of them (all in ``core/optimizer/distrib_optimizer.py``).
    """
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    owner: Any = DistributedOptimizer
    state_dict, load_state_dict, set_states = (
        owner.state_dict,
        owner.load_state_dict,
        owner._set_main_param_and_optimizer_states,
    )

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
