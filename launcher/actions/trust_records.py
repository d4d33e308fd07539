"""Show records and settings files from elsewhere, with all that they would start, before they are trusted."""

import hashlib
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from launcher import backends
from launcher.actions.requests import Output, folder
from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors, raise_any
from launcher.base.files import JsonObject
from launcher.base.terminal import say
from launcher.config import recipes
from launcher.config.catalog import Catalog, yaml_files
from launcher.config.recipes import literal
from launcher.config.trust import privileged_settings
from launcher.config.trust import sources as trust
from launcher.config.trust import store as trust_store
from launcher.config.trust.privileged_settings import PrivilegedSetting
from launcher.config.trust.sources import Source
from launcher.job import RUN
from launcher.rundir import contents, lock, run_names, signature, state
from launcher.saved import checkpoints
from launcher.spec import edit
from launcher.submission.slurm_jobs import sbatch_text

_USED = (
    "script", "script_args", "model.weights", "data.path", "data.mix", "data.eval_path", "data.eval_sets",
    "data.tokenizer", "data.template", "save.load", "backend.path", "backend.extra", "zero.nvme_path", "tracking.kind",
    "tracking.project", "tracking.uri",
)  # fmt: skip
"""Settings that the worker reads from ``spec.json`` and that name files, programs, options or destinations."""


def require_own(directories: Sequence[Path], *, trusted: bool) -> None:
    """Raise ConfigErrors that ask for ``--trust`` if a run or sweep is not as this user recorded it."""
    foreign = [each for each in directories if not all(map(signature.is_own, (each, *_points(each))))]
    errors = [error for directory in foreign if (error := _show_record(directory, trusted=trusted)) is not None]
    raise_any(errors)
    for directory in foreign:
        for record in (directory, *_points(directory)):
            run_names.remember(record)


def _show_record(directory: Path, *, trusted: bool) -> ConfigError | None:
    records = (directory, *_points(directory))
    for record in _points(directory) or [directory]:
        contents.spec_of(record)  # An unreadable record is reported first.
    before, as_shown = [*map(signature.digest, records)], all(map(signature.is_as_shown, records))
    say("\n".join(_lines(directory)))
    for record in records:
        signature.note_shown(record)
    if not as_shown or before != [*map(signature.digest, records)]:
        rule = "it is from elsewhere and differs from what was shown before: what it would start now is printed above"
        return ConfigError(str(directory), None, rule, ["--trust"])
    return None if trusted else _foreign(directory)


def _foreign(directory: Path) -> ConfigError:
    job = files.read_json(directory / contents.JOB)
    wants = ["composes and runs its points"] if job is None else [f"runs {shlex.join(_texts(job, 'argv'))}"]
    if job is not None:
        wants += trust.needs_of_spec(contents.spec_of(directory))
    rule = f"you did not record this run, or it was moved or changed, and continuing it {'; '.join(wants)}"
    return ConfigError(str(directory), None, f"{rule}; all of it is printed above", ["--trust"])


def _points(directory: Path) -> list[Path]:
    return sorted(path.parent for path in directory.glob("*/spec.json")) if (directory / state.SWEEP).is_file() else []


def _lines(directory: Path) -> Iterator[str]:
    yield f"launch: {_printable(str(directory))} is not as you recorded it; it would start:"
    if (directory / state.SWEEP).is_file():
        words = _texts(files.read_json(directory / state.SWEEP) or {}, "overrides")
        yield f"  a sweep of the words  {_printable(shlex.join(words))}"
    alike: dict[tuple[str, ...], list[str]] = {}
    for run in _points(directory) or [directory]:
        lines = tuple(line.replace(str(run), RUN) for line in _of_run(run))
        alike.setdefault(lines, []).append(run.name)
    for lines, names in alike.items():
        yield f"{_printable(', '.join(names))}  ({RUN} is the directory of the run)"
        yield from (f"  {_printable(line)}" for line in lines)


def _of_run(run: Path) -> Iterator[str]:
    job = files.read_json(run / contents.JOB)
    if job is None:
        yield "no job.json: it cannot be started"
        return
    yield f"command            {shlex.join(_texts(job, 'argv'))}"
    yield f"working folder     {job.get('working_directory')}"
    variables = job.get("environment")
    if isinstance(variables, dict):
        yield from (f"variable           {name}={value}" for name, value in sorted(variables.items()))
    yield from (f"variable of yours  {name}" for name in _texts(job, "pass_environment"))
    for path in signature.acting_files(run):
        digest = hashlib.sha256(files.read_bytes(path, files.MOST_OF_A_LOG)).hexdigest()
        yield f"file               {path.relative_to(run)}  sha256={digest}"
    for path in sorted((*run.iterdir(), *run.glob("logs/*"))):
        if path.is_symlink():
            yield f"link               {path.relative_to(run)} -> {path.readlink()}"
    spec = contents.spec_of(run)
    for key in _USED:
        value = edit.value_at(spec, key)
        if value and value != "none":
            yield f"setting            {key}={value}"
    yield from (f"needs permission   {setting}" for setting in trust.needs_of_spec(spec))
    if checkpoints.whole_checkpoints(run) and backends.of(spec).profile.unpickles:
        yield f"checkpoints        {spec.backend.name} unpickles them, which can run any code in them"
    script = sbatch_text(run.name, str(run), spec.cluster) or ""
    yield from (f"sbatch script      {line}" for line in script.splitlines())


def _texts(content: JsonObject, name: str) -> list[str]:
    found = content.get(name)
    return [str(text) for text in found] if isinstance(found, list) else []


def _printable(text: str) -> str:
    """The text with every character escaped that a terminal acts on or that changes the text direction."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


type _Acts = tuple[Path, PrivilegedSetting]
"""A file and one of its settings."""


def trust_file(words: Sequence[str], *, origin: bool) -> Output:
    """Show and trust a file, or with ``origin`` the repository that contains it."""
    if origin:
        return _trust_origin(Path(words[0]) if words else folder())
    if not words:
        rule = "name what to trust: a recipe, a lock, or a folder of configuration groups"
        raise ConfigErrors([ConfigError("FILE", None, rule, ["launch recipe trust FILE"])])
    sources = _sources(words[0])
    foreign = [source for source in sources if trust.why_foreign(source, folder=folder()) is not None]
    privileged = [(source.path, setting) for source in sources for setting in source.privileged]
    for source in foreign:
        trust.note_trusted(source.path)
    if foreign:
        said = f"launch: trusted in its current state: {' '.join(str(source.path) for source in foreign)}"
    else:
        of = "is your own or already trusted" if privileged else "does nothing that needs your consent"
        said = f"launch: there is nothing to trust: {words[0]} {of}"
    path = folder() / words[0] if len(sources) != 1 else sources[0].path
    return _output(
        path, privileged, [], _named_settings(privileged, named=len(sources) > 1), trusted=bool(foreign), said=said
    )


def _sources(word: str) -> list[Source]:
    path = folder() / word
    if path.is_dir() and not (path / contents.LOCK).is_file():
        if not any(yaml_files(path)):
            rule = "the folder holds neither a lock nor configuration groups"
            raise ConfigErrors([ConfigError("FILE", word, rule, ["launch recipe trust recipes/NAME.yaml"])])
        options = privileged_settings.of_conf(path).items()
        return [Source(path=file, privileged=privileged) for file, privileged in options]
    if lock.is_lock(path):
        found = lock.read(path)
        return [Source(path=found.path, privileged=privileged_settings.of_spec(found.spec), written=True)]
    recipe = Catalog(folder=folder()).recipe(word)
    return [Source(path=recipe, privileged=privileged_settings.of_recipe(recipes.load(recipe)))]


def _trust_origin(place: Path) -> Output:
    urls = trust.untrusted_remotes(folder() / place)
    privileged = [(path, setting) for path, setting in _acting_here() if trust.remotes(path)] if urls else []
    if urls:
        trust_store.add_origins(urls)
        said = "launch: trusted: recipes/, runs/ and conf/ in repositories from there, now and after each pull"
    else:
        said = f"launch: there is nothing to trust: {place} is in no repository with an untrusted remote"
    return _output(
        place, privileged, urls, [*urls, *_named_settings(privileged, named=True)], trusted=bool(urls), said=said
    )


def _acting_here() -> list[_Acts]:
    catalog, found = Catalog(folder=folder()), list[_Acts]()
    for path in (path for place in catalog.recipes[:-1] for path in sorted(place.glob("*.yaml"))):
        try:
            found += [(path, setting) for setting in privileged_settings.of_recipe(recipes.load(path))]
        except ConfigErrors:
            continue
    groups = (item for place in catalog.conf[:-1] for item in privileged_settings.of_conf(place).items())
    return found + [(path, setting) for path, privileged in groups for setting in privileged]


def _named_settings(privileged: Sequence[_Acts], *, named: bool) -> Iterator[str]:
    for path, setting in privileged:
        where = f"{os.path.relpath(path, folder())}: " if named else ""
        yield f"{where}{setting.key}={literal(setting.value)} {setting.does}"


def _output(
    path: Path, privileged: Sequence[_Acts], urls: Sequence[str], lines: Iterable[str], *, trusted: bool, said: str
) -> Output:
    acts = [
        {"path": str(file), "key": setting.key, "value": setting.value, "does": setting.does}
        for file, setting in privileged
    ]
    content = {"path": str(path), "acts": acts, "origins": [*urls], "trusted": trusted}
    return Output(document={"schema": 1, "recipe": content}, text="\n".join(lines), said=(said,))
