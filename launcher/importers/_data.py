"""Data sets in files of fine-tuning programs, as ``data`` or as a mix of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.base.frozen import dataclass
from launcher.importers._reading import Reading

_LOADERS = ("json", "parquet", "csv", "text", "arrow")
"""Names by which ``datasets`` takes local files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One data set of a file."""

    keys: tuple[str, ...]  # The keys of the file that say it.
    source: str  # chat, text or huggingface.
    said: Mapping[str, Any]  # Its settings by their names in ``data``: path, config, split, revision, column, ...


def source_of(path: object, *, chat: bool) -> str:
    """The source of a data set by its path: files, or a name on the Hub."""
    if chat:
        return "chat"
    return "text" if is_local(path) else "huggingface"


def is_local(path: object) -> bool:
    """True for a path on this machine; OWNER/NAME is one on the Hub."""
    name = str(path)
    parts = name.split("/")
    return name.startswith((".", "/", "~")) or len(parts) != 2 or ("." in parts[1][-7:] and parts[1].endswith(_ENDINGS))


_ENDINGS = (".json", ".jsonl", ".csv", ".parquet", ".txt", ".gz", ".zst", ".arrow")


def path_of(path: Any, files: Any) -> Any:
    """A data set's path, or that of its files where it names a loader (``path: json``)."""
    if str(path) in _LOADERS or path is None:
        return files[0] if isinstance(files, list) and len(files) == 1 else files
    return path


def say(reading: Reading, sets: Sequence[DataSet]) -> None:
    """Say one data set by ``data``, several by ``data.mix``."""
    if not sets:
        return
    chosen = sets[0].source
    reading.choose["data"] = chosen
    if len(sets) == 1:
        settings = {f"data.{name}": value for name, value in sets[0].said.items() if value is not None}
        reading.settings |= settings
        for key in sets[0].keys:
            reading.ledger.say(key, "data", *settings)
        return
    mix = []
    for each in sets:
        part = {name: value for name, value in each.said.items() if value is not None}
        mix.append(part | ({"source": each.source} if each.source != chosen else {}))
        for key in each.keys:
            reading.ledger.say(key, "data", "data.mix", "data.path")
    reading.settings |= {"data.path": None, "data.mix": mix}


def held_out(reading: Reading, key: str) -> None:
    """Say the share of samples that is held out for evaluation; refuse a number of samples, which has no setting."""
    found = reading.number(key) or 0
    if found < 1:
        reading.say(key, {"data.eval_fraction": found})
    else:
        reading.ledger.leave(key, "a share is held out here, not a number of samples: set data.eval_fraction")
