"""The gate of the verbs: where the settings of a command line come from, and what of a foreign file is let act.

``run``, ``prepare`` and ``doctor`` refuse until the user has said ``--trust``. ``check`` judges all settings, but hands
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

_LOADS = ("spec", "yaml-cfg")  # Arguments of Megatron-LM that load what they name, also where that is a number.


def require_trust(line: CommandLine, *, trusted: bool, imported: "Sequence[Source]" = ()) -> None:
    """Ask for ``--trust``, by ConfigErrors, where the settings of a command line come from elsewhere and would act."""
    from launcher.config.trust import sources as trust

    trust.require([*imported, *_sources(line)], folder=folder(), given=trusted)


def _sources(line: CommandLine) -> "list[Source]":
    """Files that a command line takes settings from: its recipe, less what the user sets, and the user's ``conf/``."""
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
    """The engine's own validator, kept from settings of files from elsewhere that could load code.

    Megatron-LM's imports the module that ``backend.extra.spec`` names, and reads files that other arguments name.
    """

    def judge(spec: RunSpec) -> Judgement:
        kept = _without_code(spec, {text.lstrip("+").partition("=")[0] for text in typed})
        if kept == spec or not (foreign := _foreign(line, imported)):
            return assess.judge(spec)
        left_out = ", ".join(_left_out(spec, kept))
        unasked = f"the engine's own validator is asked without {left_out}, unless you say --trust"
        say(f"launch: {foreign[0]} is from elsewhere and not trusted: {unasked}")
        return assess.judge(kept)

    return judge


def python_of(line: CommandLine, imported: "Sequence[Source]", typed: Sequence[str]) -> job_python.Asking:
    """A reader of the packages of the job's Python, which starts no program that a foreign file names."""
    if any(text.lstrip("+").partition("=")[0] == "cluster.python" for text in typed):
        return job_python.asked

    def read(spec: RunSpec) -> Environment | None:
        if spec.cluster.python is not None and (foreign := _foreign(line, imported)):
            known = job_python.kept(spec)
            if known is None:
                why = f"{foreign[0]} is from elsewhere and not trusted (--trust), so it was not started"
                raise job_python.Unasked(why)
            return known
        return job_python.asked(spec)

    return read


def require_for_trace(line: CommandLine, imported: "Sequence[Source]", spec: RunSpec) -> None:
    """Refuse by ConfigErrors to trace a run whose settings from elsewhere could load code: a trace runs the worker."""
    if not (spec.backend.extra or spec.backend.path):
        return
    foreign = _foreign(line, imported)
    if foreign:
        rule = f"a trace runs the worker, and {foreign[0]} is from elsewhere and would have it load code"
        raise ConfigErrors([ConfigError("--engine", "trace", rule, ["--trust", "--engine formula"])])


def may_preview(line: CommandLine, spec: RunSpec, imported: "Sequence[Source]") -> bool:
    """True if samples of the data may be read for ``data.preview``, which could fetch them; else the reason is said."""
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
    """A run without the variables and the texts handed to its engine, but for those that the user has typed."""
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
