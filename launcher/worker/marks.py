"""Token ids that are not trained as labels, marked in the row of ids itself: the negative ``~id`` stands for id.

So a sample with a mask passes every engine, data loader and pipeline stage as it is. The mean of the loss is over the
trained labels of the global batch: every rank divides its sums by :func:`share`, so that means of micro-batches and of
ranks, which all engines take, are the mean over labels, however these are spread.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from launcher.spec import RunSpec

BEGINS = 1 << 40
"""Added to the id of a token with which a document begins within a sample; such a token is never trained, as no token
of another document predicts it, so it is marked, too. Ids have 31 bits."""

IGNORED = -100  # The label that ``torch.nn.functional.cross_entropy`` leaves out.


def mark(
    ids: npt.NDArray[np.int64], trained: npt.NDArray[np.bool_], begins: Sequence[int] = ()
) -> npt.NDArray[np.int64]:
    """A row of ids with those marked that are not trained, and the places at which further documents begin."""
    row: npt.NDArray[np.int64] = np.where(trained, ids, ~ids)
    for place in begins:
        row[place] = ~(ids[place] + BEGINS)
    return row


def ids(rows: torch.Tensor) -> torch.Tensor:
    """The ids of rows, marked or not."""
    return torch.where(rows < 0, ~rows, rows) % BEGINS


def positions(rows: torch.Tensor) -> torch.Tensor:
    """The place of each token in its document."""
    places = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
    first = torch.where(rows < -BEGINS, places, 0).cummax(dim=1).values
    return places - first


def labels(rows: torch.Tensor) -> torch.Tensor:
    """The labels of rows: all columns but the first, ``IGNORED`` where they are marked."""
    behind = rows[:, 1:]
    return behind.masked_fill(behind < 0, IGNORED)


def count(rows: torch.Tensor) -> torch.Tensor:
    """The number of labels of rows that are trained."""
    return (rows[:, 1:] >= 0).sum()


def share(spec: RunSpec, counts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Trained labels of the global batch for each micro-batch of each rank; called by all ranks together.

    Where ranks share a sequence, each has its part of the labels. Without any the sums are zero and are divided by one.
    """
    total = torch.stack(list(counts)).sum()
    dist.all_reduce(total)
    parts = spec.parallel.context * spec.parallel.ulysses * dist.get_world_size() * len(counts)
    return total.clamp(min=1) / parts


def count_each(batches: Iterable[torch.Tensor], counts: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The same batches, with the trained labels of each noted as it passes."""
    for rows in batches:
        counts.append(count(rows))
        yield rows
