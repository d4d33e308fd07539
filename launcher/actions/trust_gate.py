"""The commands' trust gate: where the settings of a command line come from, and what a foreign file may do.

``run``, ``prepare`` and ``doctor`` refuse until the user gives ``--trust``. ``check`` checks all settings, but passes
none that could load code to an engine's own validator.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.actions.requests import folder
from launcher.backends import Judgement
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import say
from launcher.config.request import CommandLine
from launcher.job.versions import Environment
from launcher.preflight import assess, job_python
from launcher.spec import RunSpec

if TYPE_CHECKING:
    from launcher.config.trust.sources import Source

_LOADS = ("spec", "yaml-cfg")  # Megatron-LM arguments that load what they name, even if that is a number.


def require_trust(line: CommandLine, *, trusted: bool, imported: "Sequence[Source]" = ()) -> None:
    """Raise ConfigErrors that ask for ``--trust`` if settings from elsewhere need the user's consent."""
    from launcher.config.trust import sources as trust

    trust.require([*imported, *_sources(line)], folder=folder(), given=trusted)


def _sources(line: CommandLine) -> "list[Source]":
    """Files that a command line takes settings from: its recipe and the user's ``conf/``."""
    from launcher.config.trust import privileged_settings
    from launcher.config.trust.sources import Source

    options_of = [privileged_settings.of_conf(place) for place in line.catalog.conf[:-1]]
    found = [Source(path=path, privileged=privileged) for files in options_of for path, privileged in files.items()]
    if line.recipe is not None:
        path, recipe = line.recipe
        found.append(Source(path=path, privileged=privileged_settings.of_recipe(recipe)))
    return found


def careful_validator(
    line: CommandLine, imported: "Sequence[Source]", typed: Sequence[str]
) -> Callable[[RunSpec], Judgement]:
    """The engine's own validator, without settings of foreign files that could load code.

    Megatron-LM's imports the module that ``backend.extra.spec`` names, and reads files that other arguments name.
    """

    def judge(spec: RunSpec) -> Judgement:
        kept = _without_code(spec, {text.lstrip("+").partition("=")[0] for text in typed})
        if kept == spec or not (foreign := _foreign(line, imported)):
            return assess.judge(spec)
        left_out = ", ".join(_left_out(spec, kept))
        unasked = f"the engine's own validator runs without {left_out} unless you pass --trust"
        say(f"launch: {foreign[0]} is from elsewhere and not trusted: {unasked}")
        return assess.judge(kept)

    return judge


def python_of(line: CommandLine, imported: "Sequence[Source]", typed: Sequence[str]) -> job_python.Asking:
    """A reader of the packages of the job's Python, which never starts a program that a foreign file names."""
    if any(text.lstrip("+").partition("=")[0] == "cluster.python" for text in typed):
        return job_python.asked

    def read(spec: RunSpec) -> Environment | None:
        if spec.cluster.python is not None and (foreign := _foreign(line, imported)):
            known = job_python.kept(spec)
            if known is None:
                why = f"{foreign[0]} is from elsewhere and not trusted (--trust), so it was not started"
                raise job_python.PackagesUnknown(why)
            return known
        return job_python.asked(spec)

    return read


def require_for_trace(line: CommandLine, imported: "Sequence[Source]", spec: RunSpec) -> None:
    """Raise ConfigErrors for tracing a run whose foreign settings could load code, since a trace runs the worker."""
    if not (spec.backend.extra or spec.backend.path):
        return
    foreign = _foreign(line, imported)
    if foreign:
        rule = f"a trace runs the worker, and {foreign[0]} is from elsewhere and could make it load code"
        raise ConfigErrors([ConfigError("--engine", "trace", rule, ["--trust", "--engine formula"])])


def may_preview(line: CommandLine, spec: RunSpec, imported: "Sequence[Source]") -> bool:
    """True if samples may be read for ``data.preview``, which could download them; if not, prints the reason."""
    if not spec.data.preview:
        return True
    from launcher.config.trust import sources as trust

    for source in (*imported, *_sources(line)):
        named = any(setting.key.partition(".")[0] == "data" for setting in source.privileged)
        if named and trust.why_foreign(source, folder=folder()) is not None:
            say(f"launch: no preview: {source.path}, which names the data, is from elsewhere and not trusted (--trust)")
            return False
    return True


def _foreign(line: CommandLine, imported: "Sequence[Source]") -> list[Path]:
    from launcher.config.trust import sources as trust

    every = (*imported, *_sources(line))
    sources = (source for source in every if any(setting.runs_code for setting in source.privileged))
    return [source.path for source in sources if trust.why_foreign(source, folder=folder()) is not None]


def _without_code(spec: RunSpec, typed: Collection[str]) -> RunSpec:
    """A run without the variables and texts passed to its engine, except those that the user typed."""
    extra = {key: value for key, value in spec.backend.extra.items() if _is_harmless(key, value)}
    extra |= {key: value for key, value in spec.backend.extra.items() if f"backend.extra.{key}" in typed}
    variables = {k: v for k, v in spec.cluster.environment.items() if f"cluster.environment.{k}" in typed}
    if extra == spec.backend.extra and variables == spec.cluster.environment:
        return spec
    backend, cluster = replace(spec.backend, extra=extra), replace(spec.cluster, environment=variables)
    return replace(spec, backend=backend, cluster=cluster)


def _is_harmless(key: str, value: object) -> bool:
    items = value if isinstance(value, list | tuple) else (value,)
    plain = all(item is None or isinstance(item, bool | int | float) for item in items)
    return plain and key.lstrip("-").replace("_", "-") not in _LOADS


def _left_out(spec: RunSpec, kept: RunSpec) -> list[str]:
    pairs = (("backend.extra", spec.backend.extra, kept.backend.extra),
             ("cluster.environment", spec.cluster.environment, kept.cluster.environment))  # fmt: skip
    return [f"{node}.{key}" for node, before, after in pairs for key in before if key not in after]
