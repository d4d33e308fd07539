"""Go on with runs from their newest checkpoint, in their own directories; with a sweep, what has not finished.

With settings (launch resume RUN train.steps=200 optimizer.lr=1e-5) one run goes on with these changed; a finished one
is extended. On another number of ranks (cluster.gpus_per_node=2) the training stays the same. What the checkpoint
cannot follow is refused with the reason.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from launcher import files
from launcher.commands._common import add_json, add_trust, folder, print_json, say
from launcher.commands._finding import find, settle, sweep_of
from launcher.config import trust
from launcher.errors import ConfigError, ConfigErrors
from launcher.rundir import attempts, progress, script_copy, status
from launcher.spec import RunSpec
from launcher.spec.parse import parse
from launcher.submission import interrupts
from launcher.submission.submit import resubmit


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    words = "a run's or sweep's name or directory, or a run's job id; of one run, settings to change: KEY=VALUE"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=words)
    add_trust(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Submit each run again; the worker finds its newest checkpoint by itself."""
    words = [word for word in options.runs if "=" in word and not _is_folder(word)]
    names = [name for name in options.runs if name not in words]
    if not names:
        raise ConfigErrors([ConfigError("RUN", None, "name the runs to resume", ["launch status"])])
    exit_status = 0
    options.runs = names
    settle(options)
    names = options.runs
    directories = find(names)
    if words:
        _require_one(names, directories, words)
    sweeps = [found for name in names if (found := sweep_of(name)) is not None]
    _require_own([*sweeps, *(run for run in directories if run.parent not in sweeps)], trusted=options.trust)
    for directory in sweeps:
        from launcher.commands import _sweeping

        if all(status.read(run).state == "finished" for run in directories if run.parent == directory):
            say(f"launch: all runs of {directory.name} are finished; only a sampler may add to them")
        exit_status = max(exit_status, _sweeping.resume(directory, quiet=options.json))
    for directory in directories:
        if directory.parent not in sweeps:
            exit_status = max(exit_status, _resume(directory, words, quiet=options.json))
    if options.json:
        print_json({"schema": 1, "runs": [row.as_dict() for row in status.read_all(directories)]})
    return exit_status


def _is_folder(word: str) -> bool:
    """True if a word with an equals sign is no setting but the name or path of a run."""
    return any((place / word).is_dir() for place in (folder(), folder() / "runs"))


def _require_own(directories: Sequence[Path], *, trusted: bool) -> None:
    """Ask for ``--trust`` where a run or sweep was not recorded by this user: its ``job.json`` is run as it is.

    Raises:
        ConfigErrors: It was not given.
    """
    foreign = [directory for directory in directories if not status.is_own(directory)]
    if foreign and not trusted:
        raise ConfigErrors(map(_foreign, foreign))
    for directory in foreign:
        status.remember(directory)


def _foreign(directory: Path) -> ConfigError:
    job = files.read_json(directory / "job.json")
    wants = ["composes and runs its points"] if job is None else [f"runs {shlex.join(job['argv'])}"]
    if job is not None:
        wants += trust.needs_of_spec(parse(json.loads((directory / "spec.json").read_text())))
    rule = f"it is no run that you have recorded, or it was moved, and going on with it {'; '.join(wants)}"
    return ConfigError(str(directory), None, rule, ["--trust"])


def _require_one(names: Sequence[str], directories: Sequence[Path], words: Sequence[str]) -> None:
    """Refuse settings for several runs: each may need others, and what is refused for one would hold up the rest."""
    if len(names) > 1 or sweep_of(names[0]) is not None:
        rule = "settings are changed for one run at a time"
        ways = [f"launch resume {status.name_of(run, folder())} {' '.join(words)}" for run in directories[:1]]
        raise ConfigErrors([ConfigError("RUN", " ".join(names), rule, ways)])


def _resume(directory: Path, words: Sequence[str], *, quiet: bool) -> int:
    if not words and status.read(directory).state == "finished":
        name, steps = status.name_of(directory, folder()), progress.read(directory).step or 0
        more = f"`launch resume {name} train.steps={2 * steps}` goes on with it" if steps else ""
        say(f"launch: {directory.name} is finished; nothing to resume{'; ' if more else ''}{more}")
        return 0
    spec = parse(json.loads((directory / "spec.json").read_text()))
    _say_if_edited(directory, spec)
    with interrupts.held():  # Once it is submitted, it is watched.
        if words:
            from launcher.commands._changing import submit_changed

            job_id, spec = submit_changed(directory, words)
        else:
            job_id = resubmit(directory, spec)
        if spec.cluster.kind == "slurm":
            _warn_of_margin(directory, spec.cluster.save_margin_s)
            if not quiet:
                print(f"job {job_id}  {directory}")
            return 0
        from launcher.commands._following import follow

        return follow(directory, spec, quiet=quiet)


def _say_if_edited(directory: Path, spec: RunSpec) -> None:
    """Say that the run goes on with the copy of its script where the script is another one by now."""
    folder = Path((files.read_json(directory / "job.json") or {}).get("working_directory", "."))
    if spec.script is not None and script_copy.is_edited(directory, spec, folder):
        copy = script_copy.place(directory, spec.script)
        say(f"launch: {spec.script} is not the run's own copy any more; the run goes on with that, {copy}")
        say("launch: a new run takes the script as it is now")


def _warn_of_margin(directory: Path, margin_s: int) -> None:
    """Say that the time between Slurm's signal and the end is less than the newest checkpoint took."""
    seconds = attempts.checkpoint_seconds(directory)
    if seconds is not None and seconds > margin_s:
        say(
            f"launch: warning: cluster.save_margin_s={margin_s} is shorter than a checkpoint of this run takes, "
            f"{seconds:.0f} s: it would be ended before it has saved"
        )
