"""Privileged settings: those that run code, fetch, send, or leave the working folder, and so need permission.

A file from elsewhere may contain any of them; ``trust.sources`` asks before one takes effect. Every key of the
specification is either in the table here or harmless, and a test holds the list of both.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base import files
from launcher.base.errors import ConfigErrors
from launcher.base.frozen import dataclass
from launcher.config import safe_yaml
from launcher.config.catalog import yaml_files
from launcher.config.hub import repository as hub
from launcher.config.overrides import is_own_model
from launcher.spec.parse import texts, to_dict

if TYPE_CHECKING:
    from launcher.config.recipes import Recipe
    from launcher.spec import RunSpec

type _Test = Callable[[Any], bool]

_PLACED = re.compile(r"@(?:package\s+)?(\w+\.\w+)")
"""A key below which a file of configuration groups puts its content, or that of another file."""

_LOOKS_UP = re.compile(r"\$\{.*:", re.DOTALL)  # An OmegaConf resolver: ``${oc.env:HOME}``.
_LEAVES = "leaves the working folder"
_SHOWN = 60  # Longest excerpt of a value in a sentence, in characters; ``launch recipe trust`` shows all of it.


def _always(value: Any) -> bool:
    return True


def _is_hub_name(value: Any) -> bool:
    return isinstance(value, str) and hub.is_name(value.partition("@")[0]) and not os.path.lexists(value)


def _names_the_hub(part: Any) -> bool:
    """False if a data set of a mix consists of files on this machine; True also if that is unknown."""
    found = part if isinstance(part, dict) else {"source": "huggingface"}
    return found.get("source") == "huggingface" or _is_hub_name(found.get("path"))


_FETCHED = "may be fetched from the Hugging Face Hub"

ACTS: Mapping[str, tuple[str, _Test]] = {
    "script": ("runs this program", _always),
    "script_args": ("passes these arguments to a program", _always),
    "cluster.setup": ("runs these shell lines on every node", _always),
    "cluster.environment": ("sets environment variables, which can make a program load code", _always),
    "cluster.container_image": ("runs inside this image", _always),
    "cluster.container_mounts": ("mounts these folders in the container", _always),
    "cluster.measurements": ("adds a line about each run to this file", _always),
    "cluster.python": ("runs this program instead of Python", _always),
    "cluster.modules": ("loads these modules", _always),
    "cluster.pass_environment": ("passes these variables of your shell to the job", _always),
    "cluster.mail": ("makes Slurm send mail to this address", _always),
    "cluster.extra": ("passes these options to sbatch", _always),
    "backend.path": ("runs the code in this folder", _always),
    "backend.extra": ("passes these options to the engine", _always),
    "model.trust_remote_code": ("runs the code of a checkpoint", _always),
    "save.load": ("reads this checkpoint, whose files may hold code", _always),
    "run.directory": (_LEAVES, _always),
    "task.rewards": ("calls these functions", _always),
    "eval.tasks": ("fetches questions from the Hugging Face Hub, or runs the code of a task's file", bool),
    "tracking.uri": ("sends metrics there", _always),
    "tracking.kind": ("sends settings and metrics to a tracker", lambda value: value in ("wandb", "mlflow")),
    "data.source": ("may fetch from the Hugging Face Hub", lambda value: value == "huggingface"),
    "data.path": (_FETCHED, _is_hub_name),
    "data.eval_path": (_FETCHED, _is_hub_name),
    "data.eval_sets": (_FETCHED, _names_the_hub),
    "data.mix": (_FETCHED, _names_the_hub),
    "data.tokenizer": (_FETCHED, _is_hub_name),
}
"""Privileged keys, what each does, and with which values; for an open node all keys below it."""

CHOICES: Mapping[str, tuple[str, _Test]] = {
    "tracking": ACTS["tracking.kind"],
    "data": ACTS["data.source"],
    "model": ("reads this model, and fetches it if it is on the Hub", lambda value: is_own_model(str(value))),
}
"""Groups in which the choice of an option is privileged."""

_RUN = ("script", "cluster.setup", "cluster.environment", "cluster.container_image", "cluster.python", "cluster.extra",
        "backend.path", "backend.extra")  # fmt: skip
"""Keys whose values run code: such a value from a foreign file is recognized in any other file."""


@dataclass(frozen=True, slots=True)
class PrivilegedSetting:
    """A privileged setting: its key, its value, and what it does, in words."""

    key: str
    value: Any
    does: str

    def __str__(self) -> str:
        text = str(self.value)
        return f"{self.key}={text if len(text) <= _SHOWN else f'{text[: _SHOWN - 3]}...'} {self.does}"

    @property
    def runs_code(self) -> bool:
        """True if the value names or holds code, and is not only a boolean or number."""
        named = any(self.key == key or self.key.startswith(f"{key}.") for key in _RUN)
        return named and not isinstance(self.value, bool | int | float)

    @property
    def mark(self) -> str:
        """Short digest of the key and the value."""
        return hashlib.sha256(json.dumps([self.key, self.value], default=str).encode()).hexdigest()[:16]


def needs(settings: Mapping[str, Any], local: Iterable[str] = ()) -> Iterator[PrivilegedSetting]:
    """Yield the privileged settings among values by key (``data.path``), ``local`` if only read, and by group."""
    for key, value in settings.items():
        if not value:
            continue
        does = None if key in local else _does(key, value)
        privileged = [does for does in (does, _LEAVES if _leaves(value) else None) if does is not None]
        if privileged:
            yield PrivilegedSetting(key, value, " and ".join(dict.fromkeys(privileged)))


def of_recipe(recipe: "Recipe") -> list[PrivilegedSetting]:
    """Return the privileged settings of a recipe, including those that it sweeps over."""
    return [*needs(recipe.choose), *needs(recipe.set), *needs(recipe.sweep)]


def of_spec(spec: "RunSpec", typed: Iterable[str] = ()) -> list[PrivilegedSetting]:
    """Return the privileged settings of a whole specification, as in a lock, without the keys ``typed``."""
    flat: dict[str, object] = {}
    for section, content in to_dict(spec).items():
        if isinstance(content, dict):
            flat |= {f"{section}.{key}": value for key, value in content.items()}
        else:
            flat[section] = content
    given = {*typed}
    fetches = "data.source" in given or any(each.of_the_hub for each in spec.data.sets)
    local = () if fetches else ("data.path", "data.eval_path", "data.mix", "data.eval_sets")
    flat = {key: value for key, value in flat.items() if not key.startswith("run.") and key not in given}
    return list(needs(flat, local))


def of_words(words: Iterable[str], settings: Mapping[str, Any]) -> list[PrivilegedSetting]:
    """Return the privileged settings of an imported file, without the keys that the user's words set."""
    typed = {text.lstrip("+").partition("=")[0] for text in words}
    return list(needs({key: value for key, value in settings.items() if key not in typed}))


def _does(key: str, value: Any) -> str | None:
    for name, (does, acts) in ACTS.items():
        if (key == name or key.startswith(f"{name}.")) and _any(acts, value):
            return does
    does, acts = CHOICES.get(key, ("", _always))
    return does if does and _any(acts, value) else None


def _any(acts: _Test, value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_any(acts, item) for item in value)
    return acts(value) or (isinstance(value, str) and "${" in value)


def _leaves(value: object) -> bool:
    """True if a value, or one in it, is a path that leaves the working folder, directly or by a symbolic link."""
    if isinstance(value, list | tuple):
        return any(map(_leaves, value))
    if not isinstance(value, str):
        return False
    out = value.startswith(("/", "~", "\\")) or ".." in value.replace("\\", "/").split("/") or "://" in value
    return out or _by_a_link(value)


def _by_a_link(path: str) -> bool:
    try:
        here = os.path.realpath(".")
        place = os.path.realpath(re.split(r"[*?\[]", path)[0])
    except (OSError, ValueError):
        return False
    return place != here and not place.startswith(here.rstrip("/") + "/")


def of_conf(folder: Path) -> dict[Path, list[PrivilegedSetting]]:
    """Return the privileged settings in a folder of configuration groups by file, of all options, chosen or not.

    If a file places its content, or that of another, in groups other than that of its folder (``@package``,
    ``group@place``), each file is read as if it were in any group.
    """
    options = {path: _option(path) for path in sorted(yaml_files(folder)) if path.is_file()}
    placed = any("@" in text for option in options.values() if option for text in (option[0], *texts(option[1])))
    found = {}
    for path, option in options.items():
        groups = [".".join(path.relative_to(folder).parent.parts)]
        if placed:
            groups = ["", *dict.fromkeys(key.partition(".")[0] for key in ACTS if "." in key), *groups]
        unread = PrivilegedSetting(path.name, "", "cannot be inspected")
        found[path] = [unread] if option is None else [*_of_option(*option, groups)]
    return {path: privileged for path, privileged in found.items() if privileged}


def _option(path: Path) -> tuple[str, Mapping[str, Any]] | None:
    try:
        content, text = safe_yaml.load(path), files.read_text(path)
    except (ConfigErrors, OSError, UnicodeDecodeError):
        return None
    return text, content if isinstance(content, dict) else {}


def _of_option(text: str, content: Mapping[str, Any], groups: Iterable[str]) -> Iterator[PrivilegedSetting]:
    settings: dict[str, object] = dict(_choices(content.get("defaults")))
    own = {key: value for key, value in content.items() if key != "defaults"}
    for group in groups:
        settings |= dict(_flat(own, group))
    settings |= dict.fromkeys(_PLACED.findall(text), own)
    yield from needs(settings)
    looked_up = [value for value in texts(content) if _LOOKS_UP.search(value)]
    if looked_up:
        yield PrivilegedSetting("${...}", looked_up, "looks up values such as your environment variables")


def _choices(defaults: object) -> Iterator[tuple[str, Any]]:
    for entry in defaults if isinstance(defaults, list) else []:
        for key, value in entry.items() if isinstance(entry, dict) else ():
            yield str(key).split()[-1].lstrip("/").partition("@")[0], value


def _flat(content: Mapping[str, Any], place: str) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        path = f"{place}.{key}" if place else key
        if isinstance(value, dict) and "." not in path:
            yield from _flat(value, path)
        else:
            yield path, value
