"""Continue runs from their newest checkpoint, in their own directories; for a sweep, those that are not finished.

With settings (launch resume RUN train.steps=200 optimizer.lr=1e-5) one run continues with these changed; a finished one
is extended. On another number of ranks (cluster.gpus_per_node=2) the training stays the same. Changes that the
checkpoint does not allow are refused with the reason.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from launcher.actions.find_runs import named
from launcher.actions.requests import folder
from launcher.actions.trust_records import require_own
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.terminal import say
from launcher.commands._options import add_shared, print_json
from launcher.rundir import attempts, contents, home, provenance, results, run_names, status
from launcher.spec import edit
from launcher.submission import interrupts, submit
from launcher.submission.submit import resubmit


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    words = "name or directory of a run or sweep, or a run's job id; for one run, settings to change: KEY=VALUE"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=words)
    add_shared(parser, "--trust", "--json")


def run(options: argparse.Namespace) -> int:
    """Submit each run again; the worker finds its newest checkpoint by itself."""
    words = [word for word in options.runs if "=" in word and not _is_folder(word)]
    names = [name for name in options.runs if name not in words]
    if not names:
        raise ConfigErrors([ConfigError("RUN", None, "name the runs to resume", ["launch status"])])
    statuses = [0]
    found = named(names, ask=not options.json)
    directories = found.runs
    if words and (len(found.places) > 1 or found.sweep is not None):
        rule = "settings can be changed for only one run at a time"
        ways = [f"launch resume {run_names.name_of(run, folder())} {' '.join(words)}" for run in found.runs[:1]]
        raise ConfigErrors([ConfigError("RUN", " ".join(names), rule, ways)])
    sweeps = [place for place in found.places if run_names.is_sweep(place)]
    require_own([*sweeps, *(run for run in directories if run.parent not in sweeps)], trusted=options.trust)
    for directory in sweeps:
        from launcher.actions import sweep

        if all(status.read(run).state == "finished" for run in directories if run.parent == directory):
            say(f"launch: all runs of {directory.name} are finished; only a sampler can add more")
        statuses.append(sweep.resume(directory, show=None if options.json else print, trusted=options.trust))
    for directory in directories:
        if directory.parent not in sweeps:
            statuses.append(_resume(directory, words, trusted=options.trust, quiet=options.json))
    if options.json:
        print_json({"schema": 1, "runs": [row.as_dict() for row in status.read_all(directories)]})
    return max(statuses)


def _is_folder(word: str) -> bool:
    """True if a word with an equals sign is not a setting but the name or path of a run."""
    return any((place / word).is_dir() for place in (folder(), folder() / "runs"))


def _resume(directory: Path, words: Sequence[str], *, trusted: bool, quiet: bool) -> int:
    if not words and status.read(directory).state == "finished":
        name, steps = run_names.name_of(directory, folder()), results.read_progress(directory).step or 0
        more = f"`launch resume {name} {edit.length_override(contents.spec_of(directory), 2 * steps)}` continues it"
        say(f"launch: {directory.name} is finished; nothing to resume{f'; {more}' if steps else ''}")
        return 0
    spec = contents.spec_of(directory)
    _say_if_moved(directory, words)
    if spec.script is not None and provenance.is_script_edited(directory, spec, home.working_folder(directory)):
        copy = provenance.script_copy(directory, spec.script)
        say(f"launch: {spec.script} has changed since it was recorded; the run continues with its own copy, {copy}")
        say("launch: a new run would use the script as it is now")
    with interrupts.held():  # A submitted run must also be followed.
        if words:
            from launcher.actions.resume_changed import submit_changed

            job_id, spec = submit_changed(directory, words, trusted=trusted)
        else:
            job_id = resubmit(directory, spec)
        if spec.cluster.kind == "slurm":
            _warn_of_margin(directory, spec.cluster.save_margin_s)
            if not quiet:
                print(f"job {job_id}  {directory}")
            return 0
        from launcher.actions.follow import follow

        return follow(directory, spec, show=None if quiet else print)


def _say_if_moved(directory: Path, words: Sequence[str]) -> None:
    name, there = run_names.name_of(directory, folder()), home.original(directory)
    if there is not None:
        say(f"launch: {name} is a copy of {there}: it continues in its own folder, and the original is not changed")
    where = submit.working_folder(directory, words)
    if (was := Path(contents.job_of(directory)["working_directory"])) != where:
        say(f"launch: the working folder {was} is gone; the run has the same place in {where} and starts from there")


def _warn_of_margin(directory: Path, margin_s: int) -> None:
    seconds = attempts.checkpoint_seconds(directory)
    if seconds is not None and seconds > margin_s:
        say(
            f"launch: warning: cluster.save_margin_s={margin_s} is shorter than a checkpoint of this run takes "
            f"({seconds:.0f} s): it would be killed before it has saved"
        )
