"""Hooks for a rehearsed rank of Megatron-LM: those of a run, without its files, and an even exchange of tokens."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core.transformer.moe import token_dispatcher

from launcher.worker import loop, replaced
from launcher.worker.data import Batches
from launcher.worker.engine import Context
from launcher.worker.megatron.follow import Call, MegatronHooks
from launcher.worker.memory import live_bytes
from launcher.worker.metrics import Losses
from launcher.worker.rehearse import timed


class RehearsalDone(Exception):  # Not an error: Megatron's loop has no other way out that does not save.
    """Raised when all steps of the rehearsal are done."""


class Steps(MegatronHooks):
    """Measures as in a run, but writes no file, and ends after the last step of the rehearsal."""

    def __init__(self, context: Context, batches: Batches, last: int, seconds: list[float]) -> None:
        """Start with no step done; ``seconds`` gets the time of each step that is only timed."""
        super().__init__(context, batches)
        self._end, self._seconds = last, seconds

    def _begun(self) -> None:
        self.followed = loop.StepMonitor(self._context, live_bytes.tensors_of_process)

    def load_checkpoint(self, original: Call, *arguments: Any, **options: Any) -> tuple[int, int]:
        """Begin at step 0 with no floating-point operations counted: a checkpoint's content changes no size."""
        return 0, 0

    def train_step(self, original: Call, *arguments: Any, **options: Any) -> Any:
        """Measure the memory of the first steps, and time the others."""
        only_timed = self.step >= loop.MEASURED_STEPS
        with timed(self._context.device, self._seconds) if only_timed else contextlib.nullcontext():
            return super().train_step(original, *arguments, **options)

    def save_checkpoint_and_time(self, original: Call, iteration: int, *rest: Any, **options: Any) -> None:
        """Do nothing: saving one rank's share needs a plan by all ranks together."""

    def _note(self, evaluate: Callable[[], Losses] | None = None) -> None:
        if evaluate is not None:
            evaluate()
        if self.step >= self._end:
            raise RehearsalDone


@contextlib.contextmanager
def tokens_exchanged() -> Iterator[None]:
    """Report the other expert parallel ranks' tokens as spread evenly over the experts.

    Else every rank would seem to have this one's, which multiplies chance deviations (``MoEAlltoAllTokenDispatcher``).
    """
    module: Any = token_dispatcher
    gather = module.gather_from_sequence_parallel_region

    def gathered(tensor: torch.Tensor, *arguments: Any, group: Any = None, **options: Any) -> torch.Tensor:
        answer: torch.Tensor = gather(tensor, *arguments, group=group, **options)
        if tensor.dim() == 1 and not tensor.is_floating_point():
            rows, own = answer.view(-1, tensor.numel()), group.rank()
            rows[:own] = rows[own + 1 :] = _even(tensor)
        return answer

    with replaced(module, "gather_from_sequence_parallel_region", gathered):
        yield


def _even(tokens: torch.Tensor) -> torch.Tensor:
    count = tokens.numel()
    return (tokens.sum() + count - 1 - torch.arange(count, device=tokens.device)) // count
