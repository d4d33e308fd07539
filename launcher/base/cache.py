"""Answers kept between commands in the user's cache folder: those that were dear, by the hash of their question."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from launcher.base import files

MOST = 1000  # Answers of a kind, of some kilobytes each; a new one beyond makes the older half go.


def answer(kind: str, question: object, find: Callable[[], Any]) -> Any:
    """The answer to a question, kept where it was asked before; a folder that cannot be written is only slower.

    ``kind`` is a folder of its own, ``question`` all that the answer depends on; what ``find`` raises is not kept.
    """
    path = _place(kind, question)
    with contextlib.suppress(OSError, ValueError):
        seal, _, text = files.read_text(path, files.MOST_OF_A_RECORD).partition("\n")
        if seal == _seal(text):  # Else it is broken, or of a version that kept it otherwise.
            return json.loads(text)
    found = find()
    keep(kind, question, found)
    return found


def is_kept(kind: str, question: object) -> bool:
    """True if there is a file of an answer; whether it is whole shows when it is read."""
    return _place(kind, question).is_file()


def keep(kind: str, question: object, found: Any) -> None:
    """Keep an answer in place of an older one to the same question, with the arguments of :func:`answer`."""
    with contextlib.suppress(OSError):
        text = json.dumps(found)
        _keep(_place(kind, question), f"{_seal(text)}\n{text}")


def _place(kind: str, question: object) -> Path:
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
    return folder() / kind / f"{digest}.json"


def _seal(text: str) -> str:
    """A sum over an answer that shows it to be whole and ours: a file of another shape is asked anew."""
    return hashlib.sha256(text.encode()).hexdigest()


def folder(kind: Literal["cache", "state"] = "cache") -> Path:
    """The user's folder of this program for what can be made again, or for what is to be remembered (``state``)."""
    if os.uname().sysname == "Linux":  # As platformdirs has it, which brings ten modules, a twentieth of a check.
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
