"""``run.lock.yaml``: everything that determines a run, so that someone else can repeat it and compare the result.

It is plain data like a recipe, and a foreign one is just as untrusted. It holds the resolved specification and its
provenance: versions, a requirements list, git commit, names of changed files and the hash of their diff, machine, data
with hashes, environment, prediction; the run's first losses are added when it has ended.
"""

import contextlib
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from launcher.base import files, machine, secret, terminal
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.config import open_values, safe_yaml
from launcher.config.overrides import Override
from launcher.config.trust import sources as trust
from launcher.preflight.plan import Plan
from launcher.rundir import provenance
from launcher.rundir.contents import LOCK
from launcher.rundir.results import LOSSES, as_line
from launcher.spec import DataSpec, RunSpec, secrecy
from launcher.spec.parse import parse, to_dict

SCHEMA = 1
_NOT_COMPARED = ("data.list", "hardware.host_memory", "versions.git.changed")
_NOT_THE_RUN = (
    *("run.", "sweep.", "hardware.disk_bytes", "hardware.host_memory_bytes"),
    *("cluster.measurements", "cluster.storage_bandwidth"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock that has been read."""

    path: Path  # The file.
    spec: RunSpec  # The run.
    content: Mapping[str, Any]  # The whole content, as data.
    # ``step``, ``loss`` and ``grad_norm`` of the first lines of metrics; empty until the run has ended.
    losses: tuple[Mapping[str, Any], ...]


def build(
    plan: Plan, job: Mapping[str, Any], overrides: Sequence[str], made_of: Mapping[str, Any] | None = None
) -> JsonObject:
    """The lock of a planned run; ``made_of`` is :func:`here`, if known. Raises ConfigErrors if it holds a secret."""
    spec, estimate = plan.spec, plan.assessment.estimate
    requirements = [f"{name}=={version}" for name, version in provenance.installed().items()]
    prediction: JsonObject = {"verdict": plan.assessment.verdict.name}
    if estimate is not None:
        prediction |= {"static_bytes": estimate.static_bytes, "peak_allocated_bytes": estimate.peak.allocated_bytes}
    content = {
        "schema": SCHEMA,
        "overrides": list(overrides),
        "spec_hash": spec.hash,
        "seed": spec.train.seed,
        **(here(spec.data, with_diff=spec.run.record_diff) if made_of is None else made_of),
        "script": provenance.script_ingredient(spec.script),
        "requirements": requirements,
        "prediction": prediction,
        "job": dict(job),
        "spec": to_dict(spec),
    }
    _require_no_secret(content)
    return content


def _require_no_secret(content: Mapping[str, Any]) -> None:
    state = content["versions"]["git"]
    if state is not None and state["diff"] is not None and (form := secret.find(state["diff"])) is not None:
        rule = f"the diff of tracked files contains {form.title}, and a lock is made to be shared"
        raise ConfigErrors([ConfigError("run.record_diff", True, rule, ["run.record_diff=false"])])
    # Package names are not secrets, even if they look so: "detect-secrets==1.5.0".
    versions = {**content["versions"], "packages": list(content["versions"]["packages"].values())}
    requirements = [text.partition("==")[2] for text in content["requirements"]]
    secrecy.require_none({**content, "versions": versions, "requirements": requirements}, LOCK)


def here(data: DataSpec, *, with_diff: bool = False) -> JsonObject:
    """Provenance of a run started here and now; ``with_diff`` adds the diff of tracked files."""
    return {
        "versions": {**provenance.versions(with_diff=with_diff), **provenance.software()},
        "hardware": provenance.hardware(machine.facts()),
        "environment": provenance.environment(),
        "data": provenance.data(data),
    }


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a lock and register it as the user's own; the losses come later (``launcher.rundir.results``)."""
    text = as_text(content)
    with contextlib.suppress(ConfigErrors):
        trust.note_lock(text)
    files.write_text_atomically(path, text)


def as_text(content: Mapping[str, Any], losses: Sequence[Mapping[str, Any]] = ()) -> str:
    """The lock as YAML, its losses last."""
    text = "".join(_section(key, value) for key, value in content.items())
    lines = [as_line(row) for row in losses]
    return f"{text}{LOSSES}\n{''.join(lines)}" if lines else f"{text}{LOSSES} []\n"


def _section(key: str, value: object) -> str:
    """One key of the lock as YAML; the specification group by group, since a sweep's runs share most groups."""
    if key != "spec" or not isinstance(value, Mapping):
        return _as_yaml(json.dumps({key: value}))
    groups = "".join(_as_yaml(json.dumps({group: content})) for group, content in value.items())
    return f"{key}:\n{textwrap.indent(groups, '  ')}"


@lru_cache(maxsize=256)
def _as_yaml(content: str) -> str:
    """JSON converted to YAML; cached, since YAML takes 40 times as long to write."""
    import yaml

    dumper: Any = type("Dumper", (getattr(yaml, "CSafeDumper", yaml.SafeDumper),), {})
    tag, block = "tag:yaml.org,2002:str", {True: "|"}
    dumper.add_representer(str, lambda self, text: self.represent_scalar(tag, text, style=block.get("\n" in text)))
    dumper.ignore_aliases = lambda self, data: True

    dump: Any = partial(yaml.dump, json.loads(content), Dumper=dumper, sort_keys=False, width=1 << 16)
    text: str = dump(allow_unicode=True)
    if terminal.visible(text) != text:  # It contains terminal control characters.
        text = dump(allow_unicode=False)
    return text


def read(path: Path) -> Lock:
    """Read a lock, or that of a run directory. Raises ConfigErrors for another schema or an invalid run."""
    path = path / LOCK if path.is_dir() else path
    content = safe_yaml.load(path)
    where = str(path)
    if not isinstance(content, dict) or "spec" not in content:
        raise ConfigErrors([ConfigError(where, None, "it is not a lock: it holds no spec", ["run.lock.yaml of a run"])])
    if content.get("schema") != SCHEMA:
        rule = f"this version reads locks of schema {SCHEMA}"
        raise ConfigErrors([ConfigError(f"{where}: schema", content.get("schema"), rule)])
    try:
        spec = parse(content["spec"])
    except ConfigErrors as error:
        raise ConfigErrors(
            ConfigError(f"{where}: {e.path}", e.found, e.rule, e.way_out) for e in error.errors
        ) from None
    losses = content.get("losses") or []
    if not isinstance(losses, list) or not all(map(_is_row, losses)):
        raise ConfigErrors([ConfigError(f"{where}: losses", None, "must be a list of step, loss and grad_norm")])
    return Lock(path=path, spec=spec, content=content, losses=tuple(losses))


def _is_row(row: object) -> bool:
    if not isinstance(row, dict) or type(row.get("step")) is not int or not isinstance(row.get("loss"), int | float):
        return False
    return "grad_norm" in row and isinstance(row["grad_norm"], int | float | None)


def is_lock(path: Path) -> bool:
    """True if a file is a lock, or a run's folder holds one, whether valid or not."""
    if path.is_dir():
        return (path / LOCK).is_file()
    if not path.is_file():
        return False
    with files.opened(path) as file:
        return b"\nspec:\n" in file.read(files.MOST_BYTES)


def respecified(lock: Lock, overrides: Sequence[Override]) -> RunSpec:
    """The run of a lock without its name, with keys overridden. Raises ConfigErrors for an option or a wrong value."""
    chosen = [override for override in overrides if override.group]
    if chosen:
        rule = "a lock holds a whole run: single keys can be overridden, but no options chosen"
        raise ConfigErrors(ConfigError(override.key, override.value, rule) for override in chosen)
    content: Any = to_dict(lock.spec)
    content["run"] = {"name": None, "directory": None}
    set_keys(content, overrides, over="a lock")
    return parse(content)


def set_keys(content: JsonObject, overrides: Sequence[Override], *, over: str) -> None:
    """Set single keys of a specification in place. Raises ConfigErrors, which name ``over``, for non-plain values."""
    for override in overrides:
        plain, value = override.plain()
        if not plain:
            rule = f"only a plain value can be set over {over}"
            raise ConfigErrors([ConfigError(override.key, override.value, rule)])
        *groups, key = override.key.split(".")
        place = content
        for group in groups:
            place = place.setdefault(group, {})
        place[key] = value
    typed = {override.key for override in overrides}
    content["train"] = open_values.with_length(content["train"], typed)
    if "hardware.memory_bytes" in typed and "hardware.reserved_bytes" not in typed:
        content["hardware"]["reserved_bytes"] = 0  # A typed memory size is what a rank may use.


def ingredients(content: Mapping[str, Any]) -> JsonObject:
    """The provenance of a run without its specification, flattened: ``versions.torch``, ``data.sha256``, ..."""
    flat: JsonObject = {}
    for section in ("versions", "hardware", "environment", "data", "script"):
        flat |= dict(_flat(content.get(section), section))
    flat.pop("versions.git.diff", None)  # Its hash is compared instead.
    return {key: value for key, value in flat.items() if not key.startswith(_NOT_COMPARED)}


def _flat(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}")
    else:
        yield path, value


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Keys whose values differ, with both values; a missing key counts as None."""
    keys = dict.fromkeys((*ours, *theirs))
    return [(key, ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)]


def settings(content: Mapping[str, Any]) -> JsonObject:
    """The settings of a specification, flattened, without a run's name, the host's memory and its free disk."""
    flat = {key: value for section, part in content.items() for key, value in _flat(part, section)}
    return {key: value for key, value in flat.items() if not key.startswith(_NOT_THE_RUN)}


def spec_differences(ours: RunSpec, theirs: RunSpec) -> list[tuple[str, Any, Any]]:
    """Settings in which two runs differ."""
    return differences(settings(to_dict(ours)), settings(to_dict(theirs)))
