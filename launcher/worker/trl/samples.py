"""Samples for TRL's trainers: token ids with their labels, or rows of the task; and the order of the launcher.

A trainer takes samples in the order of a stream, so its sampler is sequential and a step sees the same samples as
under any other engine, whatever the ranks are; a checkpoint says where in the stream it stands.
"""

import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import datasets
import torch.distributed as dist
from torch.utils.data import Dataset

from launcher.base.errors import DataError
from launcher.base.files import JsonObject
from launcher.data import epoch, task_rows
from launcher.data.epoch import drawn
from launcher.data.template import ALPACA, in_alpacas_words
from launcher.spec import DataSpec, edit
from launcher.worker import data, files, marks
from launcher.worker.data.corpus import Corpus
from launcher.worker.data.order import Order, Position
from launcher.worker.engine import Context

type Sample = dict[str, Any]
type Row = dict[str, Any]


class Stream(Dataset[Sample]):
    """Samples by their place in the stream, from ``start`` on."""

    def __init__(self, samples: Any, order: Order, start: int, size: int) -> None:
        self._samples, self._order, self._start, self._size = samples, order, start, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> Sample:
        found: Sample = self._samples[self._order.sample(self._start + place)]
        return found


class Tokens:
    """Token ids as every engine has them; a sample is as long as ``train.sequence_length`` says, padding left out.

    TRL shifts labels itself, so a row of the corpus is cut one token shorter than for other engines.
    """

    def __init__(self, context: Context) -> None:
        shorter = edit.changed(context.spec, "train.sequence_length", context.spec.sequence_length - 1)
        self._spec, self._batches = context.spec, data.batches(replace(context, spec=shorter))
        self.identity = self._batches.identity

    @property
    def first(self) -> tuple[Any, Any]:
        """One sample each: the trainer reads their columns."""
        corpus, order = self._batches.training_stream()
        one = datasets.Dataset.from_list([self._labelled(corpus)[order.sample(0)]])
        return one, dict.fromkeys(self._batches.evaluated, one) or None

    def stream(self, prepared: Any, start: Position) -> Dataset[Sample]:
        """The corpus, read as it is trained on."""
        corpus, order = self._batches.training_stream()
        return Stream(self._labelled(corpus), order, start.samples, _left(self._spec, start))

    def held_out(self, prepared: Any) -> dict[str, Dataset[Sample]] | None:
        """The samples of each data set that are held out, as many global batches as one evaluation has."""
        size = self._spec.train.eval_steps * self._spec.global_batch_size
        streams = ((name, self._batches.held_out_stream(name)) for name in self._batches.evaluated)
        return {name: Stream(self._labelled(found[0]), found[1], 0, size) for name, found in streams if found} or None

    def _labelled(self, corpus: Corpus) -> "Labelled":
        return Labelled(corpus, apart=self._spec.data.packed == "documents")


class Labelled:
    """A corpus as rows of ``input_ids`` and ``labels``; what follows the last label is left out.

    Rows that keep documents apart have ``seq_lengths``, too, from which TRL's collator makes their positions.
    """

    def __init__(self, corpus: Corpus, *, apart: bool) -> None:
        self._corpus, self._apart = corpus, apart

    def __getitem__(self, index: int) -> Sample:
        row = self._corpus.sample(index)
        trained = row >= 0
        end = len(row) - int(trained[::-1].argmax()) if trained.any() else min(2, len(row))
        ids = [(int(token) if token >= 0 else ~int(token)) % marks.BEGINS for token in row[:end]]
        labels = [int(token) if token >= 0 else marks.IGNORED for token in row[:end]]
        found: Sample = {"input_ids": ids, "labels": labels}
        if self._apart:
            begins = [place for place in range(1, end) if row[place] < -marks.BEGINS]
            found["seq_lengths"] = [last - first for first, last in pairwise((0, *begins, end))]
        return found


class Rows:
    """Rows of the task, which TRL's trainer writes by the chat template and tokenises.

    KTO pairs each row with the answer of a neighbour as it prepares them, so its rows are put in their order before.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._spec = context, context.spec
        own, task, evaluates = self._spec.data, self._spec.task.name, self._spec.evaluates
        sets = [[_worded(row, each) for row in task_rows.rows(each, task)] for each in own.sets]
        self._held_out: dict[str, list[Row]] = dict(zip(own.evaluated, sets[len(own.trained) :], strict=True))
        del sets[len(own.trained) :]
        ends = list[Row]()
        for rows in sets:
            count = epoch.held_out(self._spec, len(rows))
            ends += rows[len(rows) - count :]
            del rows[len(rows) - count :]
            if not rows:
                raise DataError("data.path holds rows of which none is left to train on: name more data")
        numbers = drawn([len(rows) for rows in sets], own.weights)
        mixed = zip(sets, numbers, strict=True)
        self._rows = [rows[place % len(rows)] for rows, count in mixed for place in range(count)]
        self._size, self._held_out = len(self._rows), (self._held_out or {"": ends}) if evaluates else {}
        if task == "kto" and own.shuffle:
            self._rows = self._shuffled(self._rows)
            self._held_out = {name: self._shuffled(rows) for name, rows in self._held_out.items()}

    def _shuffled(self, rows: list[Row]) -> list[Row]:
        order = data.order_of(self._context, len(rows), shuffle=True)
        return [rows[order.sample(place)] for place in range(len(rows))]

    def identity(self) -> JsonObject:
        """The number of rows and a hash of three."""
        chosen = [self._rows[place] for place in (0, self._size // 2, self._size - 1)]
        text = json.dumps(chosen, sort_keys=True, default=str)
        return {"samples": self._size, "sha256": hashlib.sha256(text.encode()).hexdigest()[:16]}

    @property
    def first(self) -> tuple[Any, Any]:
        """All rows: data sets to train on and, where the run evaluates, to evaluate on."""
        return self._table(self._rows), {name: self._table(rows) for name, rows in self._held_out.items()} or None

    def _table(self, rows: list[Row]) -> Any:
        """Rows as a data set: in the run directory where ranks share what the reference model says of them.

        TRL's rank 0 writes that beside the data set's own files (``_precompute_ref_logps``), and a run that goes on
        finds it there.
        """
        found = datasets.Dataset.from_list(rows)
        if not self._spec.task.precompute_reference:
            return found
        folder = self._context.directory / "rows" / found._fingerprint
        if self._context.rank == 0 and not folder.is_dir():
            found.save_to_disk(folder.with_suffix(".partial"))
            files.finish_directory(folder.with_suffix(".partial"), folder)
        dist.barrier()
        return datasets.load_from_disk(folder)

    def stream(self, prepared: Any, start: Position) -> Dataset[Sample]:
        """The prepared rows; those that the trainer dropped as too long are not among them."""
        if not len(prepared):
            raise DataError(
                f"no row of data.path has an answer within train.sequence_length={self._spec.sequence_length} tokens"
            )
        shuffle = self._spec.data.shuffle and self._spec.task.name != "kto"
        order = data.order_of(self._context, len(prepared), shuffle=shuffle)
        return Stream(prepared, order, start.samples, _left(self._spec, start))

    def held_out(self, prepared: Any) -> dict[str, Dataset[Sample]] | None:
        """The first rows of each data set that are held out, as many global batches as one evaluation has."""
        most = self._spec.train.eval_steps * self._spec.global_batch_size
        return {
            name: Stream(rows, data.order_of(self._context, len(rows), shuffle=False), 0, min(len(rows), most))
            for name, rows in (prepared or {}).items()
        } or None


def _worded(row: Row, own: DataSpec) -> Row:
    """The row with what its template is told, and in Alpaca's words where ``data.template`` asks for them."""
    if own.template_values:  # TRL's trainers look for a column of that name, and that of GRPO for an argument.
        row = {**row, "chat_template_kwargs": dict(own.template_values)}
    if not (own.template or "").startswith(ALPACA):
        return row
    return {name: in_alpacas_words(value) if isinstance(value, list) else value for name, value in row.items()}


def _left(spec: Any, start: Position) -> int:
    steps: int = (spec.steps - start.step) * spec.global_batch_size
    return max(1, steps)


type Samples = Tokens | Rows


def of(context: Context) -> Samples:
    """The samples of the run's task."""
    return Rows(context) if context.spec.task.rows else Tokens(context)
