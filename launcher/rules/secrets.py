"""Rules about secrets in settings, and the names of the job's environment variables.

Settings are recorded, shared and shown, so they may hold no secret; a job inherits its secrets by name.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import get_args
from urllib.parse import urlsplit

from launcher.base import secret
from launcher.base.errors import ConfigError
from launcher.base.secret import NOT_SHOWN, TokenForm
from launcher.spec import RunSpec, edit
from launcher.spec.parse import OPEN_NODES, kinds
from launcher.spec.secrecy import refusal

_VARIABLES = "cluster.environment"
_OPEN = tuple(node for node in OPEN_NODES if node != _VARIABLES)  # Each variable is judged by its name.
_TRACKERS = {"mlflow": ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"), "wandb": ("WANDB_API_KEY",)}
"""Variables that give a tracker the credentials that its address may not hold (mlflow.org, docs.wandb.ai)."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_RESERVED = re.compile(
    r"((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|(MASTER|SLURM|TORCHELASTIC|PET|SUBMITIT)_.*|LAUNCH_(?!CACHE$).*)"
)
"""Set by torchrun (docs.pytorch.org, "Environment Variables" of torchrun; it reads its own options from ``PET_``), by
Slurm, submitit and ``launch``; ``LAUNCH_CACHE`` is the user's, the folder of token ids."""

_PATH = "cluster.pass_environment"


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors of keys whose text holds a secret, and of variables with a malformed or reserved name."""
    for name, value in sorted(spec.cluster.environment.items()):
        if why := _of_variable(name, value):
            rule = f"{why}, and settings are recorded: remove it here and let the job inherit it by name"
            way_out = [edit.override("cluster.pass_environment", [*spec.cluster.pass_environment, name])]
            yield ConfigError(f"{_VARIABLES}.{name}", NOT_SHOWN, rule, way_out)
    for path, text, where, form in _held(spec):
        yield refusal(where, form, _inherited(spec, path, form), _removal(path, text))
    yield from _variables(spec)


def _held(spec: RunSpec) -> Iterator[tuple[str, object, str, TokenForm]]:
    for path, text, form in _in_texts(_texts()(spec)):
        yield path, text, path, form
    for path in _OPEN:
        content = edit.value_at(spec, path)
        for where, form in secret.find_all(content, path) if content else ():
            yield path, content, where, form


def _inherited(spec: RunSpec, path: str, form: TokenForm) -> Iterator[str]:
    if path != "cluster.pass_environment":
        yield from spec.cluster.pass_environment
    yield from _TRACKERS.get(spec.tracking.kind, ()) if path == "tracking.uri" else (form.variable,)


def _of_variable(name: str, value: str) -> str | None:
    """Return why a variable looks like a secret: its value's form, or its name unless the value is a flag or path."""
    if (form := secret.find(value)) is not None:
        return f"its value is {form.title}"
    return "its name looks like that of a secret" if secret.may_hold_secret(name, value) else None


@lru_cache(maxsize=1024)
def _in_texts(values: tuple[object, ...]) -> tuple[tuple[str, object, TokenForm], ...]:
    """Values of :func:`_keys_of_text` that hold a secret; cached, since a search checks the same texts again."""
    found = (
        (path, value, next(secret.find_all(value, path), None))
        for path, value in zip(_keys_of_text(), values, strict=True)
    )
    return tuple((path, value, place[1]) for path, value, place in found if place is not None)


@lru_cache(maxsize=1)
def _keys_of_text() -> tuple[str, ...]:
    takes_text = (path for path, kind in kinds().items() if kind is str or str in get_args(kind))
    return tuple(path for path in takes_text if path not in OPEN_NODES)


@lru_cache(maxsize=1)
def _texts() -> Callable[[RunSpec], tuple[object, ...]]:
    return edit.reader(_keys_of_text())


def _removal(path: str, value: object) -> str | None:
    if isinstance(value, tuple):
        return None if path == "cluster.pass_environment" else f"{path}=[]"
    if isinstance(value, Mapping) or type(None) not in get_args(kinds()[path]):
        return None
    bare = _without_user(str(value))
    return f"{path}={'null' if bare is None else bare}"


def _without_user(value: str) -> str | None:
    """Return an address without user and password; None if it is no address or holds a secret elsewhere."""
    try:
        parts = urlsplit(value)
    except ValueError:
        return None
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    return bare.geturl() if parts.netloc != bare.netloc and secret.find(bare.geturl()) is None else None


def _variables(spec: RunSpec) -> Iterator[ConfigError]:
    for name in spec.cluster.environment:
        if not _VARIABLE.fullmatch(name):
            rule = "a variable's name has only letters, digits and _, and no digit first: remove this one"
            yield ConfigError(f"cluster.environment.{name}", None, rule)
        elif _RESERVED.fullmatch(name):
            rule = "the launcher, torchrun or Slurm sets it for each process: remove it"
            yield ConfigError(f"cluster.environment.{name}", None, rule)
    yield from _inherited_names(spec)


def _inherited_names(spec: RunSpec) -> Iterator[ConfigError]:
    given, names = spec.cluster.environment, spec.cluster.pass_environment
    malformed = [name for name in names if not _VARIABLE.fullmatch(name)]
    reserved = [name for name in names if _RESERVED.fullmatch(name)]
    both = sorted(set(given) & set(names))
    left_out = {*malformed, *reserved, *both}
    way_out = [edit.override(_PATH, [name for name in names if name not in left_out])]
    if malformed:
        rule = "it lists names, each of letters, digits and _ with no digit first; values come from your shell"
        yield ConfigError(_PATH, list(names), rule, way_out)
    if reserved:
        rule = f"the launcher, torchrun or Slurm sets {', '.join(reserved)} for each process: remove it"
        yield ConfigError(_PATH, list(names), rule, way_out)
    if both:
        rule = f"{', '.join(both)} would be inherited, but is also set in cluster.environment"
        yield ConfigError(_PATH, list(names), rule, way_out)
