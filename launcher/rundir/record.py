"""Writes the run directory of a new run: completely or not at all, and never over an existing run.

Everything is written to ``.<name>.<pid>.partial`` next to the final path and renamed, before anything is submitted: a
failed submission leaves a run that ``launch resume`` can submit. Only then is it added to the user's list of runs.
"""

import contextlib
import errno
import itertools
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.base import files, secret
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError
from launcher.base.files import JsonObject
from launcher.data import epoch, token_folder
from launcher.data.token_folder import TokenFolder
from launcher.job import Job, events
from launcher.preflight.assess import as_json
from launcher.preflight.plan import Plan
from launcher.rundir import contents, home, lock, provenance, run_names, state, status
from launcher.spec import RunSpec, edit, secrecy
from launcher.spec.parse import to_dict

ROOT = "runs"
ROOM_BYTES = 1 << 18
"""Bytes to leave free besides a record: the start of its job writes about 40 KiB (task, submission, states, logs), and
a job that cannot write them ends without a message."""


def directory_of(plan: Plan, *, folder: Path) -> Path:
    """The directory of a run; by default named by time, model, preset and hash."""
    spec = plan.spec
    return directory_for(spec, f"{spec.model.name}-{spec.parallel.name}-{spec.hash[:6]}", folder=folder)


def directory_for(spec: RunSpec, kind: str, *, folder: Path) -> Path:
    """The directory of a run or a sweep: as set, else below ``runs/`` by ``run.name``, or by time and ``kind``."""
    if spec.run.directory is not None:
        return (folder / spec.run.directory).absolute()
    name = spec.run.name or f"{time.strftime('%Y%m%d-%H%M%S')}-{kind}"
    return (folder / (spec.cluster.shared_folder or "") / ROOT / name).absolute()


def record(
    plan: Plan,
    directory: Path,
    *,
    overrides: tuple[str, ...],
    forced: bool,
    made_of: Mapping[str, Any] | None = None,
    tokens: TokenFolder | None = None,
) -> Path:
    """Write a new run directory and return it.

    Of two launches into one directory one wins. An existing run that never had a job is replaced. A generated name that
    is taken gets a number: ``<name>-2``. ``made_of`` is the result of ``lock.here``; None calls it.
    Raises DirectoryNotEmpty, RecordNotWritten, or ConfigErrors if a file would contain a secret.
    """
    named = plan.spec.run.name is not None or plan.spec.run.directory is not None
    content = lock.build(plan, job_as_dict(plan.job), overrides, made_of)
    require_no_secret(plan.spec, plan.job)
    for place in numbered(directory):
        try:
            with _placed(place) as partial:
                lock.write(partial / contents.LOCK, content)
                (partial / "logs").mkdir()
                (partial / "checkpoints").mkdir()
                write_settings(partial, place, plan, overrides, forced=forced)
                _keep_script(partial, plan.spec)
                home.write(partial, place)
                if tokens is not None:
                    _point_to(tokens, partial, plan.spec)
        except DirectoryNotEmpty:
            if named:
                raise
        else:
            _remove_earlier_tries(plan.spec, place)
            return place
    raise AssertionError("the numbers have no end")


def numbered(directory: Path) -> Iterator[Path]:
    """The directory, then its name with a number: ``<name>-2`` and so on."""
    yield directory
    yield from (directory.with_name(f"{directory.name}-{number}") for number in itertools.count(2))


def _point_to(tokens: TokenFolder, run: Path, spec: RunSpec) -> None:
    token_folder.record_folder(run, spec.data, tokens, steps=epoch.steps_of(spec, tokens))
    if tokens.bad_rows.count:
        events.add(run, "bad_rows", tokens.bad_rows.sentences, step=None)


@contextlib.contextmanager
def _placed(directory: Path) -> Iterator[Path]:
    """A folder that becomes the run directory at the end of the block, and is removed if that fails.

    Raises DirectoryNotEmpty and RecordNotWritten.
    """
    partial = directory.with_name(f".{directory.name}.{os.getpid()}.{threading.get_ident()}.partial")
    try:
        if directory.exists() and any(directory.iterdir()):
            _remove_unstarted(directory)
        directory.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        yield partial
        files.require_room(partial, ROOM_BYTES)
        partial.rename(directory)
        run_names.remember(directory)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and directory.is_dir():  # Another launch was quicker.
            raise taken(directory) from None
        raise RecordNotWritten(f"the run directory {directory}", error) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_unstarted(directory: Path) -> None:
    if not (directory / state.NOT_SUBMITTED).is_file() or status.has_started(directory):
        raise taken(directory)
    aside = directory.with_name(f".{directory.name}.{os.getpid()}.aside")
    directory.rename(aside)
    if not (aside / state.NOT_SUBMITTED).is_file():  # It was resumed in the meantime.
        aside.rename(directory)
        raise taken(directory)
    shutil.rmtree(aside)


def _remove_earlier_tries(spec: RunSpec, directory: Path) -> None:
    if spec.run.name is not None or spec.run.directory is not None:
        return
    digest = spec.hash[:6]
    for earlier in (*directory.parent.glob(f"*-{digest}"), *directory.parent.glob(f"*-{digest}-[0-9]*")):
        failed = (earlier / state.NOT_SUBMITTED).is_file() and not status.has_started(earlier)
        if earlier != directory and failed:
            shutil.rmtree(earlier, ignore_errors=True)


class RecordNotWritten(SubmitError):
    """Raised if a record cannot be written; nothing of it is left."""

    def __init__(self, what: str, error: OSError) -> None:
        """Name the record and the reason."""
        why = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why += f", and starting a job takes {ROOM_BYTES >> 10} KiB besides its record"
        super().__init__(f"{what} cannot be written: {why}; run.directory=... puts it elsewhere")


class DirectoryNotEmpty(SubmitError):
    """Raised if the directory is not empty."""


def taken(directory: Path) -> DirectoryNotEmpty:
    """The error for a directory that is not empty."""
    text = f"{directory} exists and is never overwritten: choose another run.name or run.directory"
    if any(contents.exists(directory, name) for name in (contents.SPEC, state.SWEEP)):
        text += f", or continue it with `launch resume {run_names.name_of(directory, Path.cwd())}`"
    return DirectoryNotEmpty(text)


def require_no_secret(spec: RunSpec, job: Job) -> None:
    """Raise ConfigErrors if a file generated or copied for a run contains a secret."""
    for name, text in job.files.items():
        secrecy.require_none(text, name)
    if spec.script is None or not Path(spec.script).is_file():
        return
    lines = files.read_text(Path(spec.script), files.MOST_OF_A_RECORD, errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if (form := secret.known(line)) is not None:
            rule = f"line {number} contains {form.title}, and the run keeps a copy: read it from the environment"
            names = dict.fromkeys([*spec.cluster.pass_environment, form.variable])
            way_out = [edit.override("cluster.pass_environment", list(names))]
            raise ConfigErrors([ConfigError("script", spec.script, rule, way_out)])


def write_settings(folder: Path, run: Path, plan: Plan, overrides: tuple[str, ...], *, forced: bool) -> None:
    """Write a run's specification, plan, job and generated files to ``folder``, which becomes ``run``."""
    _dump(folder / contents.SPEC, to_dict(plan.spec))
    _dump(folder / contents.PLAN, {**as_json(plan.assessment), "overrides": list(overrides), "forced": forced})
    _dump(folder / contents.JOB, job_as_dict(plan.job))
    for name, text in plan.job.at(str(run)).files.items():
        files.write_text_atomically(folder / name, text)


def job_as_dict(job: Job) -> JsonObject:
    """The job as stored in ``job.json``; environment variables that are passed through appear only by name."""
    return {
        "argv": list(job.argv),
        "worker_argv": list(job.worker_argv),
        "environment": dict(job.environment),
        "pass_environment": list(job.pass_environment),
        "nodes": job.nodes,
        "gpus_per_node": job.gpus_per_node,
        "files": sorted(job.files),
        "working_directory": str(Path.cwd()),
    }


def _dump(path: Path, content: Mapping[str, Any]) -> None:
    files.write_text_atomically(path, json.dumps(content, indent=1, sort_keys=True) + "\n")


def _keep_script(run: Path, spec: RunSpec) -> None:
    if spec.script is not None and Path(spec.script).is_file():
        copy = provenance.script_copy(run, spec.script)
        copy.parent.mkdir()
        shutil.copyfile(spec.script, copy)
