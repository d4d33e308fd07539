"""Samples for TRL's trainers: token ids with their labels, or rows of the task, in the launcher's order.

A trainer reads samples sequentially from a stream, so a step sees the same samples as with any other engine, for any
number of ranks; a checkpoint stores the position in the stream.
"""

import hashlib
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
from torch.utils.data import Dataset

from launcher.base.errors import DataError
from launcher.base.files import JsonObject
from launcher.data import epoch, task_rows
from launcher.data.epoch import samples_drawn
from launcher.data.template import ALPACA, in_alpacas_words
from launcher.spec import DataSpec, RunSpec, edit
from launcher.worker import data, files, marks
from launcher.worker.data.corpus import Corpus
from launcher.worker.data.order import Order, Position
from launcher.worker.engine import Context

type Sample = dict[str, Any]


class Stream(Dataset[Sample]):
    """Samples by their position in the stream after ``start``."""

    def __init__(self, samples: Any, order: Order, start: int, size: int) -> None:
        self._samples, self._order, self._start, self._size = samples, order, start, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: int) -> Sample:
        found: Sample = self._samples[self._order.sample(self._start + place)]
        return found


class Tokens:
    """Token ids as in every engine; a sample has at most ``train.sequence_length`` tokens, without padding.

    TRL shifts labels itself, so rows of the corpus are one token shorter than for other engines.
    """

    def __init__(self, context: Context) -> None:
        shorter = edit.changed(context.spec, "train.sequence_length", context.spec.sequence_length - 1)
        self._spec, self._batches = context.spec, data.batches(replace(context, spec=shorter))
        self.identity = self._batches.identity

    @property
    def first(self) -> tuple[Any, Any]:
        """Training and evaluation data sets of one sample, from which the trainer reads the columns."""
        corpus, order = self._batches.training_stream()
        one = datasets.Dataset.from_list([self._labelled(corpus)[order.sample(0)]])
        return one, dict.fromkeys(self._batches.evaluated, one) or None

    def stream(self, prepared: Any, start: Position) -> Dataset[Sample]:
        """The training samples, read lazily."""
        corpus, order = self._batches.training_stream()
        return Stream(self._labelled(corpus), order, start.samples, _left(self._spec, start))

    def held_out(self, prepared: Any) -> dict[str, Dataset[Sample]] | None:
        """The held-out samples of each data set, as many global batches as one evaluation has."""
        size = self._spec.train.eval_steps * self._spec.global_batch_size
        streams = ((name, self._batches.held_out_stream(name)) for name in self._batches.evaluated)
        return {name: Stream(self._labelled(found[0]), found[1], 0, size) for name, found in streams if found} or None

    def _labelled(self, corpus: Corpus) -> "Labelled":
        return Labelled(corpus, apart=self._spec.data.packed == "documents")


class Labelled:
    """A corpus as rows of ``input_ids`` and ``labels``; tokens after the last label are left out.

    Rows of packed documents also have ``seq_lengths``, from which TRL's collator computes positions.
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
    """Rows of the task, which TRL's trainer renders with the chat template and tokenises.

    Rank 0 writes them to the run directory; every rank maps these files, and those that the trainer makes beside them
    (``Dataset.map``, ``_precompute_ref_logps``), so no rank holds rows in memory, and a resumed run finds them there.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._spec = context, context.spec
        identity, folders = data.of_first_rank(context, self._write)
        self.identity = lambda: identity
        training, *held_out = (datasets.load_from_disk(folder) for folder in folders)
        names = self._spec.data.evaluated or ("",)
        self.first: tuple[Any, Any] = training, dict(zip(names, held_out, strict=False)) or None
        """All rows: the training data set and, if the run evaluates, the evaluation data sets."""

    def _write(self) -> tuple[JsonObject, list[Path]]:
        """Write the rows to train on, then those of each evaluation data set; return the identity, and the folders.

        KTO pairs each row with a neighbour's answer while it prepares them, so its rows are ordered before that.
        """
        own, task = self._spec.data, self._spec.task.name
        sets = [[_worded(row, each) for row in task_rows.rows(each, task)] for each in own.sets]
        evaluated = sets[len(own.trained) :]
        del sets[len(own.trained) :]
        ends = list[Sample]()
        for rows in sets:
            count = epoch.held_out(self._spec, len(rows))
            ends += rows[len(rows) - count :]
            del rows[len(rows) - count :]
            if not rows:
                raise DataError("data.path has rows, but none is left to train on after holding some out: add data")
        numbers = samples_drawn([len(rows) for rows in sets], own.weights)
        mixed = zip(sets, numbers, strict=True)
        tables = [[rows[place % len(rows)] for rows, count in mixed for place in range(count)]]
        tables += (evaluated or [ends]) if self._spec.evaluates else []
        if task == "kto" and own.shuffle:
            tables = [self._shuffled(rows) for rows in tables]
        return _identity(tables[0]), [self._folder(rows) for rows in tables]

    def _shuffled(self, rows: list[Sample]) -> list[Sample]:
        order = data.order_of(self._context, len(rows), shuffle=True)
        return [rows[order.sample(place)] for place in range(len(rows))]

    def _folder(self, rows: list[Sample]) -> Path:
        found = datasets.Dataset.from_list(rows)
        folder: Path = self._context.directory / "rows" / found._fingerprint
        if not folder.is_dir():
            found.save_to_disk(folder.with_suffix(".partial"))
            files.finish_directory(folder.with_suffix(".partial"), folder)
        return folder

    def stream(self, prepared: Any, start: Position) -> Dataset[Sample]:
        """The prepared rows, without those that the trainer dropped because they are too long."""
        if not len(prepared):
            raise DataError(
                f"no row of data.path has an answer within train.sequence_length={self._spec.sequence_length} tokens"
            )
        shuffle = self._spec.data.shuffle and self._spec.task.name != "kto"
        order = data.order_of(self._context, len(prepared), shuffle=shuffle)
        return Stream(prepared, order, start.samples, _left(self._spec, start))

    def held_out(self, prepared: Any) -> dict[str, Dataset[Sample]] | None:
        """The first held-out rows of each data set, as many global batches as one evaluation has."""
        most = self._spec.train.eval_steps * self._spec.global_batch_size
        return {
            name: Stream(rows, data.order_of(self._context, len(rows), shuffle=False), 0, min(len(rows), most))
            for name, rows in (prepared or {}).items()
        } or None


def _identity(rows: list[Sample]) -> JsonObject:
    """The number of rows and a hash of three."""
    text = json.dumps([rows[place] for place in (0, len(rows) // 2, len(rows) - 1)], sort_keys=True, default=str)
    return {"samples": len(rows), "sha256": hashlib.sha256(text.encode()).hexdigest()[:16]}


def _worded(row: Sample, own: DataSpec) -> Sample:
    """The row with the values for its template, and in Alpaca's wording if ``data.template`` asks for it."""
    if own.template_values:  # TRL's trainers read them from a column of this name, GRPO's from an argument.
        row = {**row, "chat_template_kwargs": dict(own.template_values)}
    if not (own.template or "").startswith(ALPACA):
        return row
    return {name: in_alpacas_words(value) if isinstance(value, list) else value for name, value in row.items()}


def _left(spec: RunSpec, start: Position) -> int:
    return max(1, (spec.steps - start.step) * spec.global_batch_size)


type Samples = Tokens | Rows


def of(context: Context) -> Samples:
    """The samples of the run's task."""
    return Rows(context) if context.spec.task.rows else Tokens(context)
