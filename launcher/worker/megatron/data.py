"""The run's samples as a Megatron-core data set, in the order that every other worker uses."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.datasets.indexed_dataset import _IndexWriter
from megatron.core.utils import get_batch_on_this_cp_rank
from torch.utils.data import Dataset

from launcher.base.frozen import dataclass
from launcher.worker import marks
from launcher.worker.data import Batches
from launcher.worker.data.corpus import Corpus, TokenFiles
from launcher.worker.data.order import Order
from launcher.worker.engine import Context

SEQUENCE = 2**20  # Most tokens in one sequence; the index stores lengths in 32 bits.
CORPUS = Path("data", "corpus")  # The indexed data set, as named in ``launcher.backends.megatron.training``.
LOSS = "lm loss"  # Megatron logs and averages the loss under this name.


@dataclass(frozen=True, slots=True)
class Samples(Dataset[dict[str, torch.Tensor]]):
    """The stream of the first ``size`` samples; Megatron's sampler gives positions as ``Order`` gives other engines."""

    corpus: Corpus
    order: Order
    size: int
    period: int
    marked: bool

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        row = torch.from_numpy(self.corpus.sample(self.order.sample(place % self.period)))
        if not self.marked:
            return {"tokens": row[:-1], "labels": row[1:]}
        whole = marks.ids(row)
        return {"tokens": whole[:-1], "labels": whole[1:], "loss_mask": (row[1:] >= 0).float()}


class Provider:
    """Megatron's ``train_valid_test_datasets_provider``; every rank reads its own samples (``is_distributed``)."""

    is_distributed = True

    def __init__(self, context: Context, batches: Batches) -> None:
        spec, whole, self._batches = context.spec, batches.whole, batches
        own = spec.data.source != "tokens" and not spec.data.marked
        if context.rank == 0 and isinstance(whole, TokenFiles) and own:
            write(context.directory / CORPUS, whole.maps[0])
        self._marked = spec.data.marked
        self._evaluation = spec.train.eval_steps * spec.global_batch_size

    def __call__(
        self, sizes: tuple[int, int, int], vp_stage: int | None = None
    ) -> tuple[Samples, Samples | None, None]:
        """Return training samples and, if the run evaluates, held-out ones that are the same in every evaluation.

        There is one more than is trained: Megatron refuses to start with none left, as in a run at its last step that
        is resumed only to export.
        """
        training, held_out, _ = sizes
        train = Samples(*self._batches.training_stream(), size=training + 1, period=training, marked=self._marked)
        stream = self._batches.held_out_stream()
        if stream is None:
            return train, None, None
        return train, Samples(*stream, size=held_out, period=self._evaluation, marked=self._marked), None


def forward_step(batches: Any, model: Any) -> tuple[torch.Tensor, Any]:
    """Run one micro-batch through this rank's stages; return each token's loss, and a function that reduces it."""
    batch = {name: value.to(torch.cuda.current_device(), non_blocking=True) for name, value in next(batches).items()}
    length = batch["tokens"].shape[1]
    batch["position_ids"] = torch.arange(length, device=batch["tokens"].device).expand_as(batch["tokens"])
    if parallel_state.get_context_parallel_world_size() > 1:
        group = parallel_state.get_context_parallel_group()
        batch = get_batch_on_this_cp_rank(batch, is_hybrid_cp=False, cp_group=group)
    mask = {"loss_mask": batch["loss_mask"]} if "loss_mask" in batch else {}  # For multi-token prediction's losses.
    losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"], **mask)
    return losses, functools.partial(_trained, batch["loss_mask"]) if "loss_mask" in batch else _summed


def _summed(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    total = losses.float().sum()
    count = torch.tensor(losses.numel(), dtype=torch.int, device=total.device)
    return total, count, {LOSS: torch.stack([total.detach(), count.to(total)])}


def _trained(mask: torch.Tensor, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """As :func:`_summed`, over trained labels only; Megatron divides by their number in the global batch.

    The log divides sums by counts: the smallest float instead of zero avoids 0 / 0 and changes no other value.
    """
    total, count = (losses.float() * mask).sum(), mask.sum()
    return total, count.int(), {LOSS: torch.stack([total.detach(), count.clamp(min=torch.finfo(torch.float32).tiny)])}


def write(prefix: Path, tokens: Any) -> None:
    """Link ``<prefix>.bin`` to the mapped file of unsigned ids and write ``<prefix>.idx``; both replace older ones."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    target, index = prefix.with_suffix(".bin"), prefix.with_suffix(".idx")
    for path in (target, index):
        path.unlink(missing_ok=True)
    try:
        os.link(str(tokens.filename), target)
    except OSError:  # The user's cache may be on another file system.
        target.symlink_to(Path(str(tokens.filename)).absolute())
    lengths = [min(SEQUENCE, len(tokens) - start) for start in range(0, len(tokens), SEQUENCE)]
    kind = np.int32 if tokens.dtype == np.uint32 else tokens.dtype.type  # Megatron has no uint32; ids are below 2^31.
    with _IndexWriter(str(index), kind) as writer:
        writer.write(lengths, None, [0, len(lengths)])
