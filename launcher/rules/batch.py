"""Batches: the global batch is made of whole micro-batches on every data rank."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from launcher.errors import ConfigError
from launcher.spec import RunSpec, edit, nearest


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """The global batch must be a multiple of micro-batch x data degree."""
    if not _whole(spec):
        yield _not_whole(spec)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Gradient accumulation: an optimizer step of more sequences than the ranks see at once."""
    if spec.gradient_accumulation > 1:
        yield _accumulates(spec)


def _whole(spec: RunSpec) -> bool:
    return spec.global_batch_size % (spec.train.micro_batch_size * spec.data_degree) == 0


def _not_whole(spec: RunSpec) -> ConfigError:
    micro, data, total = spec.train.micro_batch_size, spec.data_degree, spec.global_batch_size
    step = micro * data
    return ConfigError(
        "train.global_batch_size",
        total,
        f"must be a multiple of micro-batch {micro} x data degree {data} = {step}",
        chain(
            nearest.nearest(spec, "train.global_batch_size", nearest.multiples_around(total, step), _whole, limit=2),
            nearest.nearest(spec, "train.micro_batch_size", nearest.divisors(total), _whole, limit=2),
        ),
    )


def _accumulates(spec: RunSpec) -> ConfigError:
    count, total = spec.gradient_accumulation, spec.global_batch_size
    once = spec.train.micro_batch_size * spec.data_degree
    way_out = [edit.override("train.global_batch_size", once)]
    larger = count * spec.train.micro_batch_size
    if spec.parallel.pipeline > 1:
        rule = (
            f"{count} micro-batches flow through the pipeline for one optimizer step of {total} sequences"
            f" ({total * spec.sequence_length:,} tokens): learning rate, warm-up and train.steps count these steps"
        )
        return ConfigError("train.global_batch_size", total, rule, way_out)
    rule = (
        f"gradients of {count} micro-batches are accumulated, so one optimizer step sees {total} sequences"
        f" ({total * spec.sequence_length:,} tokens), not {once}: a learning rate tuned for {once} is {count} times"
        " smaller per sequence, and warm-up and train.steps count the larger steps"
    )
    return ConfigError(
        "train.global_batch_size", total, rule, [*way_out, edit.override("train.micro_batch_size", larger)]
    )
