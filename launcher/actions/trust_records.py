"""Records that this user did not make: all of what they would start is shown before ``--trust`` starts just that."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher import backends
from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.base.terminal import say
from launcher.config.trust import sources as trust
from launcher.job.job import RUN
from launcher.rundir import contents, run_names, signature, state
from launcher.saved import checkpoints
from launcher.spec import edit
from launcher.submission.slurm_jobs import sbatch_text

_USED = (
    "script", "script_args", "model.weights", "data.path", "data.tokenizer", "data.template", "save.load",
    "backend.path", "backend.extra", "zero.nvme_path", "tracking.kind", "tracking.project", "tracking.uri",
)  # fmt: skip
"""Settings that the worker reads from ``spec.json`` and that name files, programs, options and places to send to."""


def require_own(directories: Sequence[Path], *, trusted: bool) -> None:
    """Ask for ``--trust``, by ConfigErrors, where a run or sweep is not as this user recorded it."""
    foreign = [each for each in directories if not all(map(signature.is_own, (each, *_points(each))))]
    errors = [error for directory in foreign if (error := _show_record(directory, trusted=trusted)) is not None]
    if errors:
        raise ConfigErrors(errors)
    for directory in foreign:
        for record in (directory, *_points(directory)):
            run_names.remember(record)


def _show_record(directory: Path, *, trusted: bool) -> ConfigError | None:
    records = (directory, *_points(directory))
    for record in _points(directory) or [directory]:
        contents.spec_of(record)  # A record that cannot be read says so first.
    before, as_shown = [*map(signature.digest, records)], all(map(signature.is_as_shown, records))
    say("\n".join(_lines(directory)))
    for record in records:
        signature.note_shown(record)
    if not as_shown or before != [*map(signature.digest, records)]:
        rule = "it is from elsewhere and not what was shown of it before: printed above is what it would start now"
        return ConfigError(str(directory), None, rule, ["--trust"])
    return None if trusted else _foreign(directory)


def _foreign(directory: Path) -> ConfigError:
    job = files.read_json(directory / contents.JOB)
    wants = ["composes and runs its points"] if job is None else [f"runs {shlex.join(_texts(job, 'argv'))}"]
    if job is not None:
        wants += trust.needs_of_spec(contents.spec_of(directory))
    rule = f"it is no run that you have recorded, or it was moved or changed, and going on with it {'; '.join(wants)}"
    return ConfigError(str(directory), None, f"{rule}; all of it is printed above", ["--trust"])


def _points(directory: Path) -> list[Path]:
    """The directories of a sweep's points; none of a run."""
    return sorted(path.parent for path in directory.glob("*/spec.json")) if (directory / state.SWEEP).is_file() else []


def _lines(directory: Path) -> Iterator[str]:
    """All that going on with a record would start, line by line, with nothing in it that a terminal acts on."""
    yield f"launch: {_printable(str(directory))} is not as you have recorded it; what it would start:"
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
    """The job of a run: command, variables, working folder, files, settings that act, and on Slurm the script."""
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
    yield from (f"needs your word    {setting}" for setting in trust.needs_of_spec(spec))
    if checkpoints.whole_checkpoints(run) and backends.of(spec).profile.unpickles:
        yield f"checkpoints        {spec.backend.name} reads them as pickles, which run whatever code they hold"
    script = sbatch_text(run.name, str(run), spec.cluster) or ""
    yield from (f"sbatch script      {line}" for line in script.splitlines())


def _texts(content: JsonObject, name: str) -> list[str]:
    """The texts of a list in a record of somebody else, which is shown also where it is damaged."""
    found = content.get(name)
    return [str(text) for text in found] if isinstance(found, list) else []


def _printable(text: str) -> str:
    """The text with each character that a terminal may act on, or that turns its direction, written out."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
