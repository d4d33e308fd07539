"""Rules about batch sizes, which must be whole on every data rank, and the run's length, which is set by one key."""

from collections.abc import Callable, Iterator
from itertools import chain

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit
from launcher.spec.change import batches_typed


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors of batch sizes that are not whole or do not agree; any two of the three give the third."""
    train = spec.train
    yield from _said_twice(spec)
    if train.micro_batch_size is None and (train.gradient_accumulation is None or train.global_batch_size is None):
        yield _not_derived(spec)
    elif train.micro_batch_size is None:
        yield from _not_shared_out(spec)
    elif train.gradient_accumulation is not None and train.global_batch_size is not None:
        yield from _not_agreeing(spec)
    elif not _whole(spec):
        yield _not_whole(spec)


def _said_twice(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors of lengths and intervals that two keys set, and of epochs whose number of samples is unknown."""
    train, save, data = spec.train, spec.save, spec.data
    for path, value in (("train.tokens", train.tokens), ("train.epochs", train.epochs)):
        if value is not None and train.steps is not None:
            rule = f"this determines the number of steps, but train.steps={train.steps} is also set"
            yield ConfigError(path, value, rule, ["train.steps=null", f"{path}=null"])
    if train.tokens is not None and train.epochs is not None:
        rule = f"this determines the length of the run, but train.tokens={train.tokens} is also set"
        yield ConfigError("train.epochs", train.epochs, rule, ["train.tokens=null", "train.epochs=null"])
    pairs = (
        ("train.evals_per_epoch", train.evals_per_epoch, "train.eval_every", train.eval_every),
        ("save.per_epoch", save.per_epoch, "save.every", save.every),
    )
    for path, value, other, steps in pairs:
        if value is not None and steps is not None:
            rule = f"this determines the interval in steps, but {other}={steps} is also set"
            yield ConfigError(path, value, rule, [f"{other}=null", f"{path}=null"])
    keys = {"train.epochs": train.epochs, **{path: value for path, value, _, _ in pairs}}
    asked = next(((path, value) for path, value in keys.items() if value is not None), None)
    if asked is not None and data.samples is None:
        endless = data.source == "synthetic"
        rule = "synthetic data has no end" if endless else "the samples of an epoch cannot be counted on this machine"
        ways = ["data=text"] if endless else ["data.samples=10000"]
        yield ConfigError(
            *asked, rule, [*ways, "train.steps=1000" if asked[0] == "train.epochs" else f"{asked[0]}=null"]
        )


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield a warning about gradient accumulation without a pipeline, whose optimizer steps are larger."""
    if spec.gradient_accumulation > 1 and spec.parallel.pipeline == 1:
        yield _accumulates(spec)


def _whole(spec: RunSpec) -> bool:
    return spec.global_batch_size % (spec.micro_batch_size * spec.data_degree) == 0


def _not_derived(spec: RunSpec) -> ConfigError:
    count, total = spec.train.gradient_accumulation, spec.train.global_batch_size
    lacks = [f"train.gradient_accumulation={count or 1}"] if count is None else []
    if total is None:
        lacks.append(f"train.global_batch_size={spec.data_degree * (count or 1)}")
    rule = "null derives it from train.global_batch_size and train.gradient_accumulation, so both must be set"
    return ConfigError("train.micro_batch_size", None, rule, ["train.micro_batch_size=1", " ".join(lacks)])


def _not_shared_out(spec: RunSpec) -> Iterator[ConfigError]:
    count, data = spec.train.gradient_accumulation or 1, spec.data_degree
    if not _shared_out(spec):
        why = f"accumulation {count} x data degree {data} = {count * data}, to derive train.micro_batch_size"
        yield _no_multiple(spec, count * data, why, "train.gradient_accumulation", _shared_out)


def _no_multiple(spec: RunSpec, step: int, why: str, other: str, legal: Callable[[RunSpec], bool]) -> ConfigError:
    path, total = "train.global_batch_size", spec.global_batch_size
    ways = chain(
        edit.nearest(spec, path, edit.multiples_around(total, step), legal, limit=2),
        edit.nearest(spec, other, edit.divisors(total), legal, limit=2),
    )
    return ConfigError(path, total, f"must be a multiple of {why}", ways)


def _shared_out(spec: RunSpec) -> bool:
    return spec.global_batch_size % ((spec.train.gradient_accumulation or 1) * spec.data_degree) == 0


def _not_agreeing(spec: RunSpec) -> Iterator[ConfigError]:
    train, data, total = spec.train, spec.data_degree, spec.global_batch_size
    count, size = train.gradient_accumulation or 1, spec.micro_batch_size
    if total == count * size * data:
        return
    rule = (
        f"the global batch of {total} sequences is not micro-batch {size} x accumulation {count} x data degree {data} ="
        f" {count * size * data}: set one of the three to null to derive it from the others"
    )
    way_out = ["train.micro_batch_size=null"] if total % (count * data) == 0 else []
    way_out += ["train.gradient_accumulation=null"] if total % (size * data) == 0 else []
    yield ConfigError("train.gradient_accumulation", count, rule, [*way_out, "train.global_batch_size=null"])


def _not_whole(spec: RunSpec) -> ConfigError:
    micro, data = spec.micro_batch_size, spec.data_degree
    why = f"micro-batch {micro} x data degree {data} = {micro * data}"
    return _no_multiple(spec, micro * data, why, "train.micro_batch_size", _whole)


def _accumulates(spec: RunSpec) -> ConfigError:
    count, total, size = spec.gradient_accumulation, spec.global_batch_size, spec.micro_batch_size
    once = size * spec.data_degree
    rule = (
        f"gradients of {count} micro-batches are accumulated, so one optimizer step sees {total} sequences"
        f" ({total * spec.sequence_length:,} tokens), not {once}: a learning rate tuned for {once} is {count} times"
        " smaller per sequence, and warm-up and train.steps count the larger steps"
    )
    ways = [batches_typed(spec, 1, each) for each in (size, count * size)]
    return ConfigError("train.global_batch_size", total, rule, ways)
