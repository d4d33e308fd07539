"""Trust: a recipe or lock from elsewhere runs code or leaves the working folder only once the user has said so.

Reading, checking and showing it does none of that and asks for nothing. A file is the user's own if it lies in
``recipes/`` or ``runs/`` of the working folder or was shipped, and was not fetched. Any other is known by the hash of
its content, so that one that was trusted and has changed is asked about again. Trust is kept in the user's state
folder, never beside the file, which could bring it along.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError, ConfigErrors
from launcher.spec import RunSpec
from launcher.spec.parse import to_dict

_EXECUTES = {
    "script": "runs this program",
    "cluster.setup": "runs these shell lines on every node",
    "cluster.environment": "sets variables, which can make a program load code",
    "cluster.container_image": "runs inside this image",
    "cluster.container_mounts": "shows these folders to the container",
    "cluster.python": "runs this program in place of Python",
    "cluster.modules": "loads these modules",
    "cluster.pass_environment": "hands these variables of your shell to the job",
    "cluster.extra": "hands these options to sbatch",
    "backend.path": "runs the code in this folder",
    "backend.extra": "hands these options to the engine",
    "tracking.uri": "sends metrics there",
}
_OWN_FOLDERS = ("recipes", "runs")


def needs(settings: Mapping[str, Any]) -> Iterator[str]:
    """Deeds of settings that need the user's word, a sentence each.

    Args:
        settings: Values by key: ``cluster.setup``, ``data.path``, ...
    """
    for key, value in settings.items():
        if not value:
            continue
        for name, does in _EXECUTES.items():
            if key == name or key.startswith(f"{name}."):
                yield f"{key}={_short(value)} {does}"
        if _leaves(value) or (key == "run.directory"):
            yield f"{key}={_short(value)} leaves the working folder"


def needs_of_spec(spec: RunSpec) -> list[str]:
    """Deeds of a whole specification, as a lock holds it, that need the user's word."""
    flat: dict[str, Any] = {}
    for section, content in to_dict(spec).items():
        if isinstance(content, dict):
            flat |= {f"{section}.{key}": value for key, value in content.items()}
        else:
            flat[section] = content
    return list(needs({key: value for key, value in flat.items() if not key.startswith("run.")}))


def _leaves(value: object) -> bool:
    """True if a value, or one in it, is a path that leads out of the folder it is read in."""
    if isinstance(value, list | tuple):
        return any(map(_leaves, value))
    if not isinstance(value, str):
        return False
    return value.startswith(("/", "~", "\\")) or ".." in value.replace("\\", "/").split("/") or "://" in value


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def require(path: Path, wants: list[str], *, folder: Path, given: bool) -> None:
    """Allow a file's deeds if it is the user's own or trusted already, or trust it from now on.

    Args:
        path: The recipe or lock.
        wants: The sentences of :func:`needs`.
        folder: The working folder: files of its ``recipes/`` and ``runs/`` are the user's own, unless fetched.
        given: True if the user has said ``--trust``.

    Raises:
        ConfigErrors: It is from elsewhere, and nobody has said so.
    """
    if is_allowed(path, wants, folder=folder):
        return
    if not given:
        rule = f"it is from elsewhere and would do what needs your word: {'; '.join(wants)}"
        raise ConfigErrors([ConfigError(str(path), None, rule, ["--trust"])])
    _write(_store(), _read(_store()) | {digest(path): str(path)})


def is_allowed(path: Path, wants: list[str], *, folder: Path) -> bool:
    """True if a file needs no new word: it wants nothing, or is the user's own or trusted already."""
    return not wants or _is_own(path, folder) or digest(path) in _read(_store())


def note_foreign(path: Path, source: str) -> None:
    """Remember that a file of ``recipes/`` was fetched, so that lying there does not make it the user's own."""
    _write(_store("fetched.json"), _read(_store("fetched.json")) | {digest(path): source})


def digest(path: Path) -> str:
    """The SHA-256 of a file's content: a changed file is another one."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_own(path: Path, folder: Path) -> bool:
    from launcher.config.catalog import shipped

    own = [folder.resolve() / name for name in _OWN_FOLDERS] + [shipped("recipes").resolve()]
    inside = any(path.resolve().is_relative_to(place) for place in own)
    return inside and digest(path) not in _read(_store("fetched.json"))


def _store(name: str = "trusted.json") -> Path:
    from platformdirs import user_state_path

    return user_state_path("launch") / name


def _read(store: Path) -> dict[str, str]:
    try:
        content = json.loads(store.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(store: Path, content: Mapping[str, str]) -> None:
    """Replace the file in one step.

    Raises:
        ConfigErrors: The folder for the state of programs cannot be written.
    """
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        import tempfile  # Late, because few commands trust anything anew.

        with tempfile.NamedTemporaryFile("w", dir=store.parent, delete=False) as file:
            json.dump(dict(content), file)
        os.replace(file.name, store)
    except OSError as error:
        rule = f"what is trusted cannot be remembered: {error.strerror}"
        raise ConfigErrors([ConfigError(str(store), None, rule, ["XDG_STATE_HOME=..."])]) from None
