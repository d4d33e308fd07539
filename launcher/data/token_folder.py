"""Folders of token ids: made once from a run's data, found by content hash, memory-mapped by every rank.

A folder ``<hash>/`` holds ``tokens.bin`` (the narrowest unsigned integers that hold the vocabulary), ``ends.bin`` (the
end of each document or conversation, 64 bits), ``meta.json``, and for conversations ``trained.bin`` (a byte for each
token). It appears whole or not at all. ``tokens.json`` in a run directory names the folder that the run reads, so that
a resumed run trains on the same tokens even if its files have changed; a job's other nodes wait for that file.
"""

import contextlib
import itertools
import re
import sys
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, NamedTuple

from launcher.base import cache, files, typed, units
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.data.unusable import SKIP, BadRows
from launcher.spec import RunSpec
from launcher.spec.training import DataSpec

CACHE = "LAUNCH_CACHE"
"""Environment variable: a folder visible to all nodes that keeps token ids, instead of the user's cache folder."""

POINTER = "tokens.json"
"""File in a run directory: the folder that the run reads, or why there is none, and the attempt that wrote it."""

_RUN = "{run}"  # Placeholder for the run directory in that file, as in its job (``launcher.job.RUN``).

META, TOKENS, TRAINED, ENDS = "meta.json", "tokens.bin", "trained.bin", "ends.bin"

_DIGITS = 16
_NAME = re.compile(rf"[0-9a-f]{{{_DIGITS}}}(\..+\.partial|\.lock)?")
_ELSEWHERE = frozenset((
    *("path", "revision", "config", "samples", "packing", "tokenizer", "token_dtype"),
    *("eval_fraction", "workers", "shuffle", "preview", "mix", "stages", "eval_path", "eval_split"),
    *("eval_config", "eval_sets"),
))
"""Keys of ``data`` that do not change the ids, or that are hashed by content instead of value."""


class Span(NamedTuple):
    """The part of a folder that holds one data set."""

    tokens: slice
    documents: slice


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFolder:
    """A complete folder of token ids."""

    path: Path  # The folder.
    dtype: str  # The element type of ``tokens.bin``.
    tokens: int  # Number of tokens.
    documents: int  # Number of texts, or of conversations if ``marked``.
    text_bytes: int  # Bytes of the source text; 0 for conversations, which hold more than their text.
    marked: bool  # True if it holds samples with marks of the trained tokens.
    left_out: dict[str, int] = field(hash=False)  # Number of skipped rows, by reason.
    digest: str  # The hash of everything that it was made from.
    sha256: str | None = None  # The hash of the ids, marks and ends that are trained on; None if unknown.
    # Bad rows: how many of how many, and the first of them by file and line; none if bad rows are errors.
    bad_rows: BadRows = field(default_factory=BadRows, hash=False)
    parts: tuple[tuple[int, int], ...] = ()  # For several data sets, the tokens and documents up to the end of each.

    @property
    def spans(self) -> list[Span]:
        """The parts of the data sets that it holds, in the order of ``DataSpec.sets``."""
        ends = self.parts or ((self.tokens, self.documents),)
        return [
            Span(slice(*tokens), slice(*documents))
            for tokens, documents in (zip(*pair, strict=True) for pair in itertools.pairwise([(0, 0), *ends]))
        ]

    @property
    def text(self) -> str:
        """A summary in one line."""
        what = "conversations" if self.marked else "documents"
        reasons = "".join(f", {count} {reason} left out" for reason, count in self.left_out.items())
        bad = f", {self.bad_rows.count} bad rows left out" if self.bad_rows.count else ""
        return f"{units.count(self.tokens)} tokens of {units.count(self.documents)} {what}{reasons}{bad}  {self.path}"

    @property
    def bytes(self) -> int:
        """Size on disk in bytes."""
        return files.bytes_in(self.path)

    def ends(self) -> array[int]:
        """The end of each document or conversation of all data sets, as positions in the token sequence."""
        found, path = array("Q"), self.path / ENDS
        with files.opened(path) as file:
            found.fromfile(file, path.stat().st_size // found.itemsize)
        if sys.byteorder == "big":
            found.byteswap()
        return found


def is_tokenised(spec: RunSpec) -> bool:
    """True if the run's data is texts or messages that our worker reads as token ids."""
    own = spec.script is None and spec.backend.path is None
    return own and spec.data.source not in ("synthetic", "tokens", "rows")


def settings(data: DataSpec) -> JsonObject:
    """The keys that change the ids, besides the content of the files and the tokenizer."""
    found = {key: value for key, value in asdict(data).items() if key not in _ELSEWHERE}
    if data.on_bad_row != SKIP:
        del found["on_bad_row"]  # Ids made before this key existed equal those of its default.
    later = ("max_samples", "columns", "special_tokens", "template_values")
    return {key: value for key, value in found.items() if key not in later or value}


def root(spec: RunSpec, environment: Mapping[str, str], working: Path, run: Path | None) -> Path:
    """The folder that keeps token ids of all runs, or the run's own if its nodes are known to share nothing else.

    ``LAUNCH_CACHE`` comes first; then a run on this machine uses the user's cache folder, and a job
    ``cluster.shared_folder``, which a container does not see. ConfigErrors: none is known, and there is no run yet.
    """
    cluster = spec.cluster
    if environment.get(CACHE) or cluster.kind == "local":
        return root_here(environment, working)
    if cluster.shared_folder is not None and cluster.container == "none":
        return working / cluster.shared_folder / "cache" / "tokens"
    if run is not None:
        return run / "cache"
    rule = f"a job's token ids go to a folder that its nodes share: name it, or set {CACHE} (here and in the job)"
    way = "cluster.shared_folder=/path/that/nodes/see"
    raise ConfigErrors([ConfigError("cluster.shared_folder", None, rule, [way])])


def root_here(environment: Mapping[str, str], working: Path) -> Path:
    """The folder that keeps token ids of runs on this machine."""
    own = environment.get(CACHE)
    return (working / own if own else cache.folder()) / "tokens"


_FACTS: Mapping[str, Any] = {
    **dict.fromkeys(("dtype", "digest"), str),
    **dict.fromkeys(("tokens", "documents", "text_bytes"), int),
    "marked": bool,
    "left_out": Mapping[str, int],
    "sha256": str | None,
}
"""Types of the facts in ``meta.json``, which identify a complete folder."""


def read(path: Path) -> TokenFolder | None:
    """The folder at a path; None if it is missing or incomplete."""
    meta = files.read_json(path / META)
    if meta is None or not (path / TOKENS).is_file():
        return None
    facts: JsonObject = {key: meta.get(key) for key in _FACTS}
    if not all(typed.reader(kind)(facts[key])[0] for key, kind in _FACTS.items()):
        return None  # It is damaged.
    parts = tuple((int(tokens), int(documents)) for tokens, documents in meta.get("parts", ()))
    return TokenFolder(path=path, bad_rows=BadRows.read(meta.get("bad_rows")), parts=parts, **facts)


def record_folder(run: Path, data: DataSpec, found: TokenFolder, attempt: str = "", steps: int | None = None) -> None:
    """Record in the run directory which folder the run reads, and its steps if they follow from that."""
    path = Path(_RUN) / found.path.relative_to(run) if found.path.is_relative_to(run) else found.path
    content = {"folder": str(path), "digest": found.digest, "data": _settings_of(data), "attempt": attempt}
    files.write_atomically(run / POINTER, content if steps is None else {**content, "steps": steps})


def record_failure(run: Path, error: str, attempt: str) -> None:
    """Record in the run directory why this attempt has no token ids, next to what the run read before."""
    before = files.read_json(run / POINTER) or {}
    files.write_atomically(run / POINTER, {**before, "error": error, "attempt": attempt})


def recorded_folder(run: Path, data: DataSpec) -> TokenFolder | None:
    """The folder that the run directory names for these settings; None if it names none or that is gone."""
    content = files.read_json(run / POINTER) or {}
    if not isinstance(content.get("folder"), str) or content.get("data") != _settings_of(data):
        return None
    return read(folder_of(content, run))


def folder_of(content: Mapping[str, Any], run: Path) -> Path:
    """The folder that a run's record names; ``{run}`` is the run directory, which may have moved since."""
    return Path(str(content["folder"]).replace(_RUN, str(run), 1))


def digest(run: Path) -> str | None:
    """The hash of the folder that the run read last, whether or not it still exists."""
    return (files.read_json(run / POINTER) or {}).get("digest")


def _settings_of(data: DataSpec) -> JsonObject:
    if len(data.sets) > 1:
        return {"sets": [_settings_of(each) for each in data.sets]}
    data = data.trained[0]
    at_hub = {key: value for key in ("revision", "config") if (value := getattr(data, key)) is not None}
    return {"path": data.path, **at_hub, "tokenizer": data.tokenizer, **settings(data)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """Location and size of the token cache."""

    path: Path
    folders: int
    bytes: int

    def as_dict(self) -> JsonObject:
        """The form in ``launch prepare --json`` and ``launch doctor --json``."""
        return {"path": str(self.path), "folders": self.folders, "bytes": self.bytes}


def cache_use(path: Path) -> CacheUse:
    """The content of a cache, including folders that are being written."""
    found = list(_entries(path))
    folders = sum(entry.suffix == "" for entry in found)
    return CacheUse(path=path, folders=folders, bytes=sum(map(files.bytes_in, found)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearedCache:
    """The folders removed from a cache, and how many were kept because a process is making them."""

    removed: CacheUse
    busy: int


def clear(path: Path) -> ClearedCache:
    """Remove what a cache holds; a run that reads it keeps its mapping until it ends, and remakes it when resumed.

    What another process is making is kept. Lock files stay, because a removed lock no longer keeps a third process out.
    On a file system without locks nobody can tell which writers live, so partial folders stay, too.
    """
    from shutil import rmtree  # Late, because only this needs it.

    folders = size = busy = 0
    for name, group in itertools.groupby(sorted(_entries(path)), lambda entry: entry.name[:_DIGITS]):
        found = [entry for entry in group if entry.is_dir()]
        if not found:
            continue
        with _held(path / f"{name}.lock") as held:
            mine = [entry for entry in found if held or (held is None and entry.suffix == "")]
            folders += sum(entry.suffix == "" for entry in mine)
            size += sum(files.bytes_in(entry) for entry in mine)
            busy += mine != found
            for entry in mine:
                rmtree(entry, ignore_errors=True)
    return ClearedCache(removed=CacheUse(path=path, folders=folders, bytes=size), busy=busy)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool | None]:
    with contextlib.ExitStack() as stack:
        held: bool | None = True
        try:
            lock = stack.enter_context(path.open("a"))
            held = files.lock(lock.fileno())
        except OSError:
            held = None
        yield held


def _entries(path: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (entry for entry in path.iterdir() if _NAME.fullmatch(entry.name))
