"""A cache of expensive results between commands, in the user's cache folder, keyed by the hash of their inputs."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from launcher.base import files

MOST = 1000  # The most results of a kind, of some kilobytes each; beyond it the older half is deleted.


def answer(kind: str, question: object, find: Callable[[], Any]) -> Any:
    """Return a cached result, or that of ``find``, which is then cached; without a writable folder it is only slower.

    ``kind`` names the subfolder, ``question`` is everything that the result depends on; exceptions are not cached.
    """
    path = _place(kind, question)
    with contextlib.suppress(OSError, ValueError):
        seal, _, text = files.read_text(path, files.MOST_OF_A_RECORD).partition("\n")
        if seal == _seal(text):  # Else it is damaged, or in the format of another version.
            return json.loads(text)
    found = find()
    keep(kind, question, found)
    return found


def is_kept(kind: str, question: object) -> bool:
    """True if a result's file exists; it is verified only when it is read."""
    return _place(kind, question).is_file()


def keep(kind: str, question: object, found: Any) -> None:
    """Cache a result, replacing an older one, with the arguments of :func:`answer`."""
    with contextlib.suppress(OSError):
        text = json.dumps(found)
        _keep(_place(kind, question), f"{_seal(text)}\n{text}")


def _place(kind: str, question: object) -> Path:
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
    return folder() / kind / f"{digest}.json"


def _seal(text: str) -> str:
    """A checksum of a result, by which a damaged or foreign file is recognized and recomputed."""
    return hashlib.sha256(text.encode()).hexdigest()


def folder(kind: Literal["cache", "state"] = "cache") -> Path:
    """Return this program's folder of the user, for data that can be recomputed, or for lasting ``state``."""
    if os.uname().sysname == "Linux":  # The same as platformdirs, whose ten modules take a twentieth of a check.
        named = Path(os.environ.get(f"XDG_{kind.upper()}_HOME", ""))
        own = ".cache" if kind == "cache" else ".local/state"
        return (named if named.is_absolute() else Path.home() / own) / "launch"
    import platformdirs

    path: Path = getattr(platformdirs, f"user_{kind}_path")("launch")
    return path


def _keep(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text_atomically(path, text)
    with os.scandir(path.parent) as entries:
        kept = [entry.path for entry in entries]
    if len(kept) > MOST:
        for old in sorted(map(Path, kept), key=files.changed_at)[: len(kept) - MOST // 2]:
            old.unlink(missing_ok=True)
