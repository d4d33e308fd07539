"""The caches of the Hugging Face Hub, read as plain files: no network, no package, no delay.

The folders are those of ``huggingface_hub`` (``file_download.py``: ``<kind>s--OWNER--NAME/refs/REVISION`` holds the
commit, ``snapshots/COMMIT/`` its files) and of ``datasets`` (``builder.py``, ``_relative_data_dir``:
``OWNER___name/CONFIG/VERSION/COMMIT/``, with ``dataset_info.json`` and an Arrow file or several of each split).
:func:`fetch_tokenizer` and, for data sets, ``launcher.data.documents`` download; planning never does.
"""

import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

from launcher.base import files
from launcher.data.unusable import NotHere, Unusable, importing
from launcher.spec.training import DataSpec

type Kind = Literal["model", "dataset"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
TOKENIZER = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "spiece.model")
"""Files of which every tokenizer has at least one."""

_WANTED = ("tokenizer*", "*token*.json", "*.jinja", "vocab*", "merges.txt", "spiece.model", "config.json", "*.tiktoken")


class HubName(NamedTuple):
    """A name on the Hub as it is typed: ``OWNER/NAME``, or ``OWNER/NAME@REVISION``."""

    name: str
    revision: str | None

    @property
    def command(self) -> str:
        """The command that downloads a model's files without its weights."""
        at = "" if self.revision is None else f" --revision {self.revision}"
        return f"hf download {self.name}{at} --include 'tokenizer*' '*.json' '*.jinja'"


def named(text: str) -> HubName | None:
    """The Hub name that a text is; None for an existing folder and for an invalid name."""
    return None if Path(text).exists() else split(text)


def split(text: str) -> HubName | None:
    """The name and revision in a text; None for an invalid name."""
    name, at, revision = text.partition("@")
    return None if not NAME.match(name) or (at and not _REVISION.match(revision)) else HubName(name, revision or None)


def home() -> Path:
    """The folder of all Hugging Face caches (``huggingface_hub.constants``, ``HF_HOME``)."""
    above = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return files.expanded(os.environ.get("HF_HOME", f"{above}/huggingface"))


def cache() -> Path:
    """The cache folder of ``huggingface_hub``, from the variables that it reads (``huggingface_hub.constants``)."""
    return files.expanded(os.environ.get("HF_HUB_CACHE", os.environ.get("HUGGINGFACE_HUB_CACHE", str(home() / "hub"))))


def commit(kind: Kind, name: str, revision: str | None = None) -> str | None:
    """The commit of a branch or tag when it was last downloaded; None if it never was."""
    if revision is not None and _COMMIT.match(revision):
        return revision
    try:
        found = files.read_text(_repository(kind, name) / "refs" / (revision or "main")).strip()
    except (OSError, ValueError):
        return None
    return found if _REVISION.match(found) and "/" not in found else None


def snapshot(kind: Kind, name: str, revision: str | None = None) -> Path | None:
    """The folder of a repository's files at a revision; None if none were downloaded."""
    at = commit(kind, name, revision)
    found = _repository(kind, name) / "snapshots" / (at or "")
    return found if at is not None and found.is_dir() else None


def _repository(kind: Kind, name: str) -> Path:
    return cache() / f"{kind}s--{name.replace('/', '--')}"


def tokenizer_folder(text: str) -> Path | None:
    """The folder of a tokenizer: the one that ``data.tokenizer`` names, or the cached one; None if there is none."""
    if not text or Path(text).is_dir():
        return Path(text) if text else None
    found = named(text)
    place = None if found is None else snapshot("model", *found)
    return place if place is not None and any((place / name).is_file() for name in TOKENIZER) else None


def missing_tokenizer(text: str) -> NotHere:
    """The error for a tokenizer that this machine lacks, with the command that downloads it from the Hub."""
    ways, found = ["data.tokenizer=bytes"], named(text)
    if found is None:
        rule = "no such folder on this machine, and a tokenizer on the Hub is OWNER/NAME or OWNER/NAME@REVISION"
        return NotHere("data.tokenizer", text, rule, ways)
    rule = "this tokenizer of the Hugging Face Hub is not in this machine's cache"
    return NotHere("data.tokenizer", text, rule, [found.command, *ways])


def fetch_tokenizer(text: str) -> None:
    """Download a tokenizer from the Hub into the cache unless it is there; Unusable if that fails."""
    found = named(text)
    if found is None or tokenizer_folder(text) is not None:
        return
    with importing("data.tokenizer", text, "downloading a tokenizer needs huggingface_hub"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars
    disable_progress_bars()
    endpoint = os.environ.get("HF_ENDPOINT")
    try:
        snapshot_download(
            found.name, revision=found.revision, allow_patterns=[*_WANTED], cache_dir=cache(), endpoint=endpoint
        )
    except Exception as error:
        rule = (
            f"downloading it from the Hugging Face Hub failed: {' '.join(str(error).split()) or type(error).__name__}"
        )
        raise Unusable("data.tokenizer", text, rule, [found.command, "data.tokenizer=bytes"]) from error


class BuiltSplit(NamedTuple):
    """The files of one split of a data set that ``datasets`` has built in its cache."""

    commit: str
    rows: int | None
    files: tuple[Path, ...]


def built(data: DataSpec) -> BuiltSplit | None:
    """The Arrow files of the split in the cache of ``datasets``; None if it has not built that configuration.

    Raises Unusable: The data set has other splits.
    """
    name = data.path or ""
    at = commit("dataset", name, data.revision)
    config = data.config or (None if at is None else _default_config(name, at))
    place = next(iter(_data_set(name).glob(f"{config}/*/{at}")), None) if config is not None else None
    if place is None or at is None:
        return None
    try:
        said = files.load_json(place / "dataset_info.json")["splits"]
        rows = {str(split): int(content["num_examples"]) for split, content in said.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    name_of = split_name(data.split)
    if name_of not in rows:
        rule = f"{name} has {', '.join(sorted(rows))}"
        raise Unusable("data.split", data.split, rule, [f"data.split={split}" for split in sorted(rows)])
    form = re.compile(rf".+-{re.escape(name_of)}(-\d+-of-\d+)?\.arrow")
    found = tuple(sorted(path for path in place.glob("*.arrow") if form.fullmatch(path.name)))
    return BuiltSplit(at, rows[name_of], found) if found else None


def _data_set(name: str) -> Path:
    owner, slash, own = name.rpartition("/")
    own = re.sub(r"([a-z\d])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", own)).lower()
    root = files.expanded(os.environ.get("HF_DATASETS_CACHE", str(home() / "datasets")))
    return root / (f"{owner}___{own}" if slash else own)


def _default_config(name: str, at: str) -> str | None:
    """The default configuration from the data set's card; None if there are several and none is the default."""
    try:
        card = files.read_text(_repository("dataset", name) / "snapshots" / at / "README.md")
    except (OSError, ValueError):
        return "default"
    head = re.match(r"---\n(.*?)\n---", card, re.DOTALL)
    if head is None or "configs:" not in head[1]:
        return "default"
    import yaml  # Late, because few runs train on a data set of the Hub.

    try:
        rows = [row for row in yaml.safe_load(head[1]).get("configs") or () if "config_name" in row]
    except (yaml.YAMLError, AttributeError, TypeError):
        return None
    named = [str(row["config_name"]) for row in rows]
    chosen = [str(row["config_name"]) for row in rows if row.get("default")]
    return next(iter(chosen), "default" if "default" in named or not named else named[0] if len(named) == 1 else None)


_SLICE = re.compile(r"(?P<name>[\w.-]+)\[(?:(-?\d{1,15})(%?))?:(?:(-?\d{1,15})(%?))?\]\Z")


def split_name(split: str) -> str:
    """The split without its slice, as ``datasets`` writes them: ``train[:5%]``, ``train[1000:2000]``."""
    found = _SLICE.match(split)
    return found["name"] if found else split


def slice_of(split: str, rows: int) -> tuple[int, int] | None:
    """The first row of the slice and the row after its last, of ``rows``; None without a slice.

    Percentages are rounded to the nearest row, as ``datasets`` does (``arrow_reader.py``, ``_pct_to_abs_closest``).
    """
    found = _SLICE.match(split)
    if found is None:
        return None
    places = []
    for value, percent, missing in ((found[2], found[3], 0), (found[4], found[5], rows)):
        place = missing if value is None else round(int(value) * rows / 100) if percent else int(value)
        places.append(min(rows, max(0, place + rows if place < 0 else place)))
    return places[0], max(places)
