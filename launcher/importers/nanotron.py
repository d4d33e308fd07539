"""nanotron's YAML: keys and defaults of nanotron 0.4 (``config/config.py``), and those of its later main branch.

Its ranks are laid out like Megatron-LM's: tensor and pipeline parallel ranks, and ZeRO-1 over the data ranks. The batch
is said by all of its three numbers, since ``parallelism.dp`` is what the ranks make of them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from launcher.config.ledger import Ledger, name_from
from launcher.importers import Imported, _fine_tuning, _foreign
from launcher.importers._reading import KeyReader, flat, parts
from launcher.importers._table import apply, choose, defaults, imported, program, rows, under

_S = "optimizer.learning_rate_scheduler"
_DEFAULTS, _LLAMA = program("nanotron", "defaults llama")
_SMALL = 2**16  # Ids below it take two bytes.


def read(text: str, path: str) -> Imported:
    """Read a nanotron configuration; ``path`` is for messages; raises ConfigErrors where the text is none."""
    found, notes = _foreign.read(text, path, "a configuration of nanotron", None)
    ledger = Ledger(flat(found if notes is None else _named(found)))
    reading = KeyReader(path=path, lenient=True, file="nanotron's YAML", ledger=ledger, notes=notes or [])
    _data_sets(reading)
    apply(TABLE, reading)
    defaults(reading, {**_DEFAULTS, **_LLAMA})
    _batch(reading)
    _schedule(reading)
    reading.settings["model.name"] = name_from(
        str(reading.value("general.run") or reading.value("general.project") or path)
    )
    return imported(reading, reading.settings["model.name"], "nanotron")


def _named(found: Any) -> Any:
    """A ``Config`` of Python with the names of the YAML: classes and first arguments that say something are keys."""
    if isinstance(found, list):
        return [_named(each) for each in found]
    if not isinstance(found, dict):
        return found
    kind = str(found.get("class")).rpartition(".")[2]
    first = {"0": "tokenizer_name_or_path"} if kind == "TokenizerArgs" else {"0": "std"} if kind == "RandomInit" else {}
    made = {first.get(key, key): _named(value) for key, value in found.items() if key != "class"}
    return made | (
        {f"is_{kind.removesuffix('Config').lower()}_config": True}
        if kind.endswith("Config") and kind != "Config"
        else {}
    )


def _batch(reading: KeyReader) -> None:
    micro = reading.settings.get("train.micro_batch_size", 1)
    steps = reading.settings.get("train.gradient_accumulation", 1)
    ranks = reading.count("parallelism.dp", 1)
    if ranks is not None:
        reading.say("parallelism.dp", {"train.global_batch_size": micro * steps * ranks})
    # The defaults of parallel=3d are others.
    reading.settings = {"parallel.tensor": 1, "parallel.pipeline": 1, **reading.settings}
    degrees = [int(reading.settings.get(f"parallel.{name}", 1)) for name in ("tensor", "pipeline")]
    if ranks is not None:
        reading.notes.append(f"it runs on {ranks * degrees[0] * degrees[1]} GPUs")
    if degrees[0] == 1:
        reading.settings["parallel.sequence"] = False


def _schedule(reading: KeyReader) -> None:
    steps = reading.settings.get("train.steps")
    warmup = reading.settings.get("optimizer.warmup_steps", 0)
    style = str(reading.value(f"{_S}.lr_decay_style") or "linear").lower()
    start, length = reading.number(f"{_S}.lr_decay_starting_step"), reading.number(f"{_S}.lr_decay_steps")
    keys = [f"{_S}.{name}" for name in ("lr_decay_style", "lr_decay_starting_step", "lr_decay_steps")]
    begin = int(start if start is not None else warmup)
    end = begin + int(length) if length else steps
    if reading.value(f"{_S}.min_decay_lr") is None and "optimizer.lr" in reading.settings:
        reading.settings["optimizer.min_lr"] = reading.settings["optimizer.lr"]  # LRSchedulerArgs.__post_init__
    if end is None or style not in ("linear", "cosine", "1-sqrt"):
        for key in keys:
            if reading.ledger.is_open(key):
                reading.ledger.leave(key, "the schedule has its own learning rates: set optimizer.schedule")
        return
    said: dict[str, Any] = {"optimizer.decay_steps": end} if end != steps else {}
    if begin <= warmup and style != "1-sqrt":
        said["optimizer.schedule"] = style
    else:
        said |= {"optimizer.schedule": "wsd", "optimizer.wsd_decay_steps": max(1, end - begin),
                 "optimizer.wsd_decay": {"1-sqrt": "minus_sqrt"}.get(style, style)}  # fmt: skip
    reading.say_together(said, *keys)


def _data_sets(reading: KeyReader) -> None:
    """Say the data of one stage by ``data.path`` or ``data.mix``, of several by ``data.stages``."""
    stages = parts(reading.ledger.values, "data_stages")
    blocks = [f"{stage}.data" for stage in stages] or ["data"]
    found = [[*_sets(reading, f"{block}.dataset")] for block in blocks]
    for stage in stages:
        if reading.value(f"{stage}.sequence_length") == reading.value("tokens.sequence_length"):
            reading.default(f"{stage}.sequence_length")
        reading.idle("a name only", f"{stage}.name")
    reading.idle("the run begins with it", *(f"{stage}.start_training_step" for stage in stages[:1]))
    for stage, earlier, block in zip(stages[1:], blocks, blocks[1:], strict=False):
        reading.idle("as in the first stage, in that program's order", f"{block}.num_loading_workers", f"{block}.seed")
        if (reading.number(f"{stage}.start_training_step") or 0) > (reading.number("tokens.train_steps") or math.inf):
            reading.idle("the run ends before it", stage)
        elif _of(reading, f"{block}.dataset") == _of(reading, f"{earlier}.dataset"):
            reading.idle("the same data continue, in that program's order", stage)
    if len(stages) < 2 or not _staged(reading, stages, found):
        _fine_tuning.say(reading, found[0])
    if not found[0] and reading.ledger.values.get(f"{blocks[0]}.dataset", "") is None:
        choose(reading, f"{blocks[0]}.dataset", {"data": "synthetic"})
    reading.say_count(f"{blocks[0]}.num_loading_workers", "data.workers")
    reading.say_count(f"{blocks[0]}.seed", "train.seed")
    apply(under(_OF_DATA, *(f"{block}." for block in blocks)), reading)


def _staged(reading: KeyReader, stages: Sequence[str], found: Sequence[Sequence[_fine_tuning.DataSet]]) -> bool:
    """Say the data of stages that differ; False if they do not, or if launch cannot say them."""
    starts = [f"{stage}.start_training_step" for stage in stages]
    opened = [place for place, key in enumerate(starts) if reading.ledger.is_open(key) or not place]
    steps = [reading.count(starts[place], 1) or 1 if place else 1 for place in opened]
    batch = ("micro_batch_size", "batch_accumulation_per_replica", "sequence_length")
    sizes = [reading.count(f"tokens.{key}", 1) for key in batch] + [reading.count("parallelism.dp", 1)]
    sets = [
        {(each.source, *(said for key, said in each.said.items() if key != "weight")): each for each in found[place]}
        for place in opened
    ]
    every = list(dict.fromkeys(name for each in sets for name in each))
    unweighted = any(len(each) > 1 and None in (one.said.get("weight") for one in each.values()) for each in sets)
    if len(every) < 2 or None in sizes or unweighted or not all(sets) or len({name[0] for name in every}) > 1:
        return False
    parts_of = {name: each for stage in reversed(sets) for name, each in stage.items()}
    keys = tuple(key for stage in sets for each in stage.values() for key in each.keys)
    alone = [replace(parts_of[name], keys=keys, said={**parts_of[name].said, "weight": None}) for name in every]
    _fine_tuning.say(reading, alone)
    given = [{name: each.said.get("weight") for name, each in stage.items()} for stage in sets]
    weights = [[1.0 if (share := each.get(name, 0.0)) is None else share for name in every] for each in given]
    tokens = math.prod(size for size in sizes if size)
    said = [{"after_tokens": (step - 1) * tokens, "weights": each} for step, each in zip(steps, weights, strict=True)]
    reading.say_together({"data.stages": said}, *(starts[place] for place in opened[1:]))
    return True


def _sets(reading: KeyReader, block: str) -> Iterator[_fine_tuning.DataSet]:
    """The data sets of one stage: folders of token ids, or data sets of the Hub."""
    splits, shares = reading.value(f"{block}.hf_dataset_splits"), reading.value(f"{block}.dataset_weights")
    said = {
        "split": splits if isinstance(splits, str) else None,
        "config": reading.value(f"{block}.hf_dataset_config_name"),
        "column": reading.value(f"{block}.text_column_name"),
    }
    names = ("hf_dataset_or_datasets", "hf_dataset_splits", "hf_dataset_config_name", "text_column_name")
    keys = tuple(f"{block}.{name}" for name in names)
    for each in reading.listed(keys[0]):
        if isinstance(each, str):
            source = _fine_tuning.source_of(each, chat=False)
            yield _fine_tuning.DataSet(keys=keys, source=source, said={"path": each, **said})
    folders = [each for each in reading.listed(f"{block}.dataset_folder") if isinstance(each, str)]
    weights = shares if isinstance(shares, list) and len(shares) == len(folders) else [None] * len(folders)
    keys = (f"{block}.dataset_folder", f"{block}.dataset_weights")
    for path, weight in zip(folders, weights, strict=True):
        yield _fine_tuning.DataSet(keys=keys, source="tokens", said={"path": path, "weight": weight})
    ids = [reading.number(f"{each}.vocab_size") or 0 for each in (block, "model.model_config")]
    if folders and (max(ids) > _SMALL or reading.number(f"{block}.token_size_in_bytes") == 4):
        reading.settings["data.token_dtype"] = "uint32"
        for name in ("vocab_size", "token_size_in_bytes"):
            reading.ledger.say(f"{block}.{name}", "data.token_dtype")


def _of(reading: KeyReader, block: str) -> dict[str, Any]:
    return {key.removeprefix(block): value for key, value in reading.ledger.values.items() if key.startswith(block)}


_OF_DATA = rows("nanotron_data")
TABLE = rows("nanotron")
