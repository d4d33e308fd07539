"""nanotron's YAML: keys and defaults of nanotron 0.4 (``config/config.py``), and those of its later main branch.

Its ranks are laid out like Megatron-LM's: tensor and pipeline parallel ranks, and ZeRO-1 over the data ranks. The batch
is said by all of its three numbers, since ``parallelism.dp`` is what the ranks make of them.
"""

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
    stages = parts(reading.ledger.values, "data_stages")
    block = f"{stages[0]}.data" if stages else "data"
    for stage in stages[1:]:
        if _of(reading, stage) == _of(reading, stages[0]):
            reading.idle("the same data continue, in that program's order", stage)
        else:
            reading.leave("launch reads one data set from beginning to end: set data.mix", stage)
    if stages:
        length = f"{stages[0]}.sequence_length"
        if reading.value(length) == reading.value("tokens.sequence_length"):
            reading.default(length)
        reading.idle("for the only stage", f"{stages[0]}.name", f"{stages[0]}.start_training_step")
    splits = reading.value(f"{block}.dataset.hf_dataset_splits")
    names = {"hf_dataset_or_datasets": "path", "hf_dataset_splits": "split", "hf_dataset_config_name": "config",
             "text_column_name": "column"}  # fmt: skip
    hubs = [each for each in reading.listed(f"{block}.dataset.hf_dataset_or_datasets") if isinstance(each, str)]
    sets = []
    for each in hubs:
        said = {
            "path": each,
            "split": splits if isinstance(splits, str) else None,
            "config": reading.value(f"{block}.dataset.hf_dataset_config_name"),
            "column": reading.value(f"{block}.dataset.text_column_name"),
        }
        keys = tuple(f"{block}.dataset.{name}" for name in names)
        source = _fine_tuning.source_of(each, chat=False)
        sets.append(_fine_tuning.DataSet(keys=keys, source=source, said=said))
    _fine_tuning.say(reading, sets)
    if not _folders(reading, f"{block}.dataset") and reading.ledger.values.get(f"{block}.dataset", "") is None:
        choose(reading, f"{block}.dataset", {"data": "synthetic"})
    reading.say_count(f"{block}.num_loading_workers", "data.workers")
    reading.say_count(f"{block}.seed", "train.seed")
    apply(under(_OF_DATA, f"{block}."), reading)


def _of(reading: KeyReader, stage: str) -> dict[str, Any]:
    start = f"{stage}.data."
    return {key.removeprefix(start): value for key, value in reading.ledger.values.items() if key.startswith(start)}


def _folders(reading: KeyReader, block: str) -> bool:
    shares = reading.value(f"{block}.dataset_weights")
    folders = [each for each in reading.listed(f"{block}.dataset_folder") if isinstance(each, str)]
    weights = shares if isinstance(shares, list) and len(shares) == len(folders) else [None] * len(folders)
    keys = (f"{block}.dataset_folder", f"{block}.dataset_weights")
    said = [{"path": each, "weight": weight} for each, weight in zip(folders, weights, strict=True)]
    _fine_tuning.say(reading, [_fine_tuning.DataSet(keys=keys, source="tokens", said=each) for each in said])
    ids = [reading.number(f"{each}.vocab_size") or 0 for each in (block, "model.model_config")]
    if folders and (max(ids) > _SMALL or reading.number(f"{block}.token_size_in_bytes") == 4):
        reading.settings["data.token_dtype"] = "uint32"
        for name in ("vocab_size", "token_size_in_bytes"):
            reading.ledger.say(f"{block}.{name}", "data.token_dtype")
    return bool(folders)


_OF_DATA = rows("nanotron_data")
TABLE = rows("nanotron")
