"""Batches of one rank, as tensors on its device.

The step number determines its samples (``launcher.worker.data.order``), so checkpoints save no loader state. A step's
micro-batches are one array of shape ``(micro-batches, micro_batch_size, sequence_length + 1)``, read in this process or
ahead by ``data.workers`` processes. Evaluation reads the end of the corpus, which training never sees.

Texts are tokenised before the job's ranks start (``launcher.worker.prepare``), and ``tokens.json`` in the run directory
names the folder. If ranks are started without the launcher, rank 0 makes the folder; the others wait in a broadcast of
its path or of the error, so that all ranks fail together.
"""

import hashlib
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from launcher.base.errors import LauncherError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.data import epoch, token_folder
from launcher.data.files import files_of
from launcher.data.prepare import prepared
from launcher.data.token_folder import CACHE, TOKENS, Span, TokenFolder
from launcher.spec import RunSpec
from launcher.worker.data.corpus import Corpus, Documents, Mix, Synthetic, TokenFiles, mapped, split
from launcher.worker.data.order import Order, Position, Stage
from launcher.worker.engine import Context

_FIRST = Position()


@dataclass(frozen=True, slots=True)
class _Steps(Dataset[torch.Tensor]):
    """Item ``step`` is this rank's share of a step, of shape (micro-batches, micro_batch_size, sequence_length + 1)."""

    corpus: Corpus
    order: Order

    def __getitem__(self, step: int) -> torch.Tensor:
        rows = [[self.corpus.sample(index) for index in micro_batch] for micro_batch in self.order.samples(step)]
        return torch.from_numpy(np.array(rows))


class Batches:
    """The run's batches for one rank."""

    def __init__(self, context: Context, whole: Corpus, training: Corpus, held_out: Mapping[str, Corpus]) -> None:
        self._context, self.whole, self._training, self._held_out = context, whole, training, held_out

    def identity(self) -> JsonObject:
        """The identity of the training samples: their number, a hash of three, and for prepared data a hash of all.

        It names no files, which may be moved or made again between two attempts. Token files, which may be too large to
        hash, lack ``all``.
        """
        size, digest = self._training.size, hashlib.sha256()
        for index in (0, size // 2, size - 1):
            digest.update(np.ascontiguousarray(self._training.sample(index)).tobytes())
        found = {"samples": size, "sha256": digest.hexdigest()[:16]}
        return found if self._training.sha256 is None else {**found, "all": self._training.sha256}

    def training(self, start: Position, *, last: int) -> Iterator[tuple[int, list[torch.Tensor]]]:
        """The steps after ``start`` up to ``last`` with their micro-batches."""
        spec, device = self._context.spec, self._context.device
        steps = range(start.step + 1, last + 1)
        source = _Steps(*self.training_stream(start))
        if spec.data.workers == 0 or not steps:
            rows: Iterator[torch.Tensor] = (source[step] for step in steps)
        else:
            loader = DataLoader(
                source,
                batch_size=None,  # An item is already a whole step.
                sampler=steps,
                num_workers=spec.data.workers,
                pin_memory=device.type == "cuda",
                multiprocessing_context="fork",
                worker_init_fn=_ignore_signals,
            )
            with warnings.catch_warnings():  # Python warns of any fork in a process with threads; loaders only read.
                warnings.simplefilter("ignore", DeprecationWarning)
                rows = iter(loader)
        for step, tokens in zip(steps, rows, strict=True):
            yield step, list(tokens.to(device, non_blocking=True))

    @property
    def evaluated(self) -> tuple[str, ...]:
        """Names of the data sets of an evaluation, "" for an unnamed one; empty if the run does not evaluate."""
        return tuple(self._held_out)

    def held_out(self, name: str) -> Iterator[torch.Tensor]:
        """This rank's micro-batches of one evaluation data set: the same every time, in the corpus's order.

        A mix is shuffled, so that its first samples come from every data set.
        """
        stream = self.held_out_stream(name)
        assert stream is not None, "a run that evaluates has held samples out"
        source = _Steps(*stream)
        for step in range(1, self._context.spec.train.eval_steps + 1):
            yield from source[step].to(self._context.device)

    def training_stream(self, start: Position = _FIRST) -> tuple[Corpus, Order]:
        """The training samples and their order, for an engine that iterates over them itself."""
        spec = self._context.spec
        order = order_of(self._context, self._training.size, shuffle=spec.data.shuffle, start=start)
        if isinstance(self._training, Mix) and spec.data.stages:
            starts = (-(-each.after_tokens // spec.sequence_length) for each in spec.data.stages)
            order = replace(order, stages=tuple(map(Stage, starts, *self._training.ranges)))
        return self._training, order

    def held_out_stream(self, name: str = "") -> tuple[Corpus, Order] | None:
        """The held-out samples of a data set and their order; None if the run does not evaluate."""
        found = self._held_out.get(name)
        return None if found is None else (found, order_of(self._context, found.size, shuffle=isinstance(found, Mix)))


def order_of(context: Context, size: int, *, shuffle: bool, start: Position = _FIRST) -> Order:
    """The order in which this rank reads ``size`` samples."""
    spec = context.spec
    return Order(
        size=size,
        seed=spec.train.seed,
        shuffle=shuffle,
        global_batch_size=spec.global_batch_size,
        micro_batch_size=spec.micro_batch_size,
        data_rank=context.data_rank,
        data_ranks=spec.data_degree,
        start=start,
    )


def _ignore_signals(worker: int) -> None:
    """Ignore signals meant for the rank: a reader killed by SIGUSR2 would end the rank."""
    for number in (signal.SIGUSR2, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def batches(context: Context, opened: Sequence[Corpus] | None = None) -> Batches:
    """The batches of the run's data (:func:`open_corpora`), with samples held out if the run evaluates.

    Held out are the evaluation data sets, or else the end of each training data set.
    """
    opened, data = open_corpora(context) if opened is None else opened, context.spec.data
    number = len(opened) - len(data.evaluated)
    training, held_out = list(opened[:number]), dict(zip(data.evaluated, opened[number:], strict=True))
    if not context.spec.evaluates:
        held_out = {}
    elif not held_out:
        pairs = [split(each, data.eval_fraction) for each in training]
        training, held_out = [first for first, _ in pairs], {"": _joined([last for _, last in pairs], ())}
    stages = [Mix(training, stage.weights) for stage in data.stages]
    joined = Mix(stages, ()) if stages else _joined(training, data.weights)
    return Batches(context, _joined(opened, ()), joined, held_out)


def _joined(corpora: Sequence[Corpus], weights: Sequence[float]) -> Corpus:
    return corpora[0] if len(corpora) == 1 else Mix(corpora, weights)


def counted(context: Context) -> tuple[Context, Sequence[Corpus] | None]:
    """The context and the corpora, with an epoch's samples counted if the run's steps depend on them.

    Called by all ranks together, before the engine, which needs the steps, is made. Else corpora are opened after it.
    """
    if not context.spec.counts_epochs:
        return context, None
    opened = open_corpora(context)
    samples = batches(context, opened).training_stream()[0].size
    return replace(context, spec=epoch.counted(context.spec, samples)), opened


def open_corpora(context: Context) -> Sequence[Corpus]:
    """Open the run's data sets, or raise DataError if they cannot be used; called by all ranks together."""
    spec = context.spec
    data, length, vocabulary = spec.data, spec.sequence_length, spec.model.vocab_size
    if data.source == "synthetic":
        return [Synthetic(vocabulary, length, spec.train.seed)]
    if data.source == "tokens":
        paths = zip(map(files_of, data.sets), data.places, strict=True)
        return [
            TokenFiles(each, data.token_dtype, length=length, vocabulary=vocabulary, key=key) for each, key in paths
        ]
    folder = _tokenised(context)
    return [_corpus(spec, folder, span, key) for span, key in zip(folder.spans, data.places, strict=True)]


def _corpus(spec: RunSpec, found: TokenFolder, span: Span, key: str) -> Corpus:
    length, vocabulary = spec.sequence_length, spec.model.vocab_size
    if spec.data.packed != "concat":
        apart = spec.data.packed == "documents"
        return Documents(found, span, length=length, vocabulary=vocabulary, apart=apart, key=key)
    marks, part = mapped(found)[1], span.tokens
    return TokenFiles(
        [found.path / TOKENS],
        found.dtype,
        length=length,
        vocabulary=vocabulary,
        sha256=found.sha256,
        trained=None if marks is None else marks[part],
        part=part,
        key=key,
    )


def _tokenised(context: Context) -> TokenFolder:
    """The folder of token ids: the one that the run directory names, else made by rank 0."""
    data, cache = context.spec.data, os.environ.get(CACHE)
    root = Path(cache) / "tokens" if cache else context.directory / "cache"
    return of_first_rank(context, lambda: token_folder.recorded_folder(context.directory, data) or prepared(data, root))


def of_first_rank[Answer](context: Context, make: Callable[[], Answer]) -> Answer:
    """Call ``make`` on rank 0 and return its answer, or raise its error, on every rank."""
    answer: list[Any] = [None]
    if context.rank == 0:
        try:
            answer = [make()]
        except LauncherError as error:
            answer = [error]
    dist.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], LauncherError):
        raise answer[0]
    found: Answer = answer[0]
    return found
