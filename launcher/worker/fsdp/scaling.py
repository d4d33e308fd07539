"""Loss scaling of fp16 by torch's own scaler, over all ranks of a run.

The loss is multiplied before the backward pass, so that gradients of fp16 do not vanish, and they are divided before
they are clipped. A step whose gradients are not finite on any rank is skipped by all, and the scale falls to half.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.amp import GradScaler
from torch.optim import Optimizer

from launcher.worker.engine import Context, LossScale

INITIAL_SCALE, GROWTH_INTERVAL = 2.0**16, 2000  # Torch's own defaults (``torch.amp.GradScaler``).
_SAVED = {"scale": "scale", "steps": "_growth_tracker"}  # Names in a checkpoint, and torch's own.


class Scaler(GradScaler):
    """The loss scale of a run in fp16; in other formats every call hands through what it gets.

    All ranks skip a step if any must: also stages, and whole gradients of other samples. (``ShardedGradScaler`` of
    ``torch.distributed.fsdp`` does so too, but fused optimizers fail on its answer of shape (1,): ``_foreach_sub_`` in
    torch 2.15's ``_fused_adamw``.)
    """

    def __init__(self, context: Context) -> None:
        precision = context.spec.precision
        self._constant = precision.loss_scale
        super().__init__(
            context.device.type,
            init_scale=precision.loss_scale or precision.initial_loss_scale or INITIAL_SCALE,
            growth_interval=precision.loss_scale_window or GROWTH_INTERVAL,
            enabled=precision.compute == "fp16",
        )
        if self.is_enabled():
            self._one = torch.ones((), device=context.device)
            self._skipped = torch.zeros((), device=context.device)
            self.scale(self._one)  # Also on ranks that never have a loss: those of a pipeline's first stages.

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale; all ranks learn whether those of any are infinite."""
        super().unscale_(optimizer)
        if self.is_enabled():
            for found in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
                dist.all_reduce(found, op=dist.ReduceOp.MAX)

    def step_all(self, optimizers: Iterable[Optimizer], norm: torch.Tensor) -> LossScale | None:
        """Step unless gradients are infinite, and adapt the scale; ``norm`` is theirs.

        The device is not waited for: a norm that is no number counts as a step that was skipped.
        """
        for each in optimizers:
            self.step(each)
        if not self.is_enabled():
            return None
        self.update(self._constant)
        self._skipped += ~norm.isfinite()
        return LossScale(scale=self.scale(self._one), skipped=self._skipped)

    def saved(self) -> dict[str, torch.Tensor]:
        """The scale and the steps since it last changed, for a checkpoint; empty where nothing is scaled."""
        state = self.state_dict()
        return {name: torch.tensor(float(state[key])) for name, key in _SAVED.items()} if state else {}

    def restore(self, saved: dict[str, torch.Tensor]) -> None:
        """Go on from the state of a checkpoint, unless the run sets a constant."""
        if self._constant is not None:
            return
        found = {_SAVED[name]: value.item() for name, value in saved.items()}
        found["_growth_tracker"] = int(found["_growth_tracker"])
        self.load_state_dict(self.state_dict() | found)
