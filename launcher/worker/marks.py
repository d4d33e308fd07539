"""Loss masks stored in the token ids themselves: an id excluded from the loss is stored as the negative ``~id``.

A masked sample therefore passes through every engine, data loader and pipeline stage unchanged. The loss is the mean
over the trained labels of the global batch: every rank divides its sums by :func:`share`, so that averaging over
micro-batches and ranks, as all engines do, gives the mean over labels, however they are distributed.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from launcher.spec import RunSpec

BEGINS = 1 << 40
"""Added to the id of the first token of a document inside a sample. Such a token is never trained, since no token of
another document predicts it, so it is marked, too. Ids have 31 bits."""

IGNORED = -100  # The label that ``torch.nn.functional.cross_entropy`` ignores by default.


def mark(
    ids: npt.NDArray[np.int64], trained: npt.NDArray[np.bool_], begins: Sequence[int] = ()
) -> npt.NDArray[np.int64]:
    """A row of ids with untrained ids marked, and the positions at which further documents begin."""
    row: npt.NDArray[np.int64] = np.where(trained, ids, ~ids)
    for place in begins:
        row[place] = ~(ids[place] + BEGINS)
    return row


def ids(rows: torch.Tensor) -> torch.Tensor:
    """The token ids of rows, without marks."""
    return torch.where(rows < 0, ~rows, rows) % BEGINS


def positions(rows: torch.Tensor) -> torch.Tensor:
    """The position of each token in its document."""
    places = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
    first = torch.where(rows < -BEGINS, places, 0).cummax(dim=1).values
    return places - first


def labels(rows: torch.Tensor) -> torch.Tensor:
    """The labels of rows: all columns but the first, ``IGNORED`` where marked."""
    behind = rows[:, 1:]
    return behind.masked_fill(behind < 0, IGNORED)


def count(rows: torch.Tensor) -> torch.Tensor:
    """The number of trained labels in rows."""
    return (rows[:, 1:] >= 0).sum()


def share(spec: RunSpec, counts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Trained labels of the global batch per micro-batch and rank: the divisor of a loss sum. All ranks call it.

    Ranks that share a sequence each have a part of its labels. Without trained labels the sums, zero, are divided by 1.
    """
    total = torch.stack(list(counts)).sum()
    dist.all_reduce(total)
    parts = spec.parallel.context * spec.parallel.ulysses * dist.get_world_size() * len(counts)
    return total.clamp(min=1) / parts


def count_each(batches: Iterable[torch.Tensor], counts: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the same batches, and append each one's number of trained labels to ``counts``."""
    for rows in batches:
        counts.append(count(rows))
        yield rows
