"""Compose, check, record and start a run.

cluster=local (the default) runs it on this machine and shows its progress; cluster=slurm submits it, prints job id and
run directory, and returns. Ctrl-C stops a local run after it has saved a checkpoint; a second Ctrl-C ends it at once.
"""

import argparse
from pathlib import Path

from launcher.actions import run_data
from launcher.actions.run import RunRequest, Unfit, debug, prepare_run, record_run, start
from launcher.actions.trust_gate import require_trust
from launcher.base.terminal import say, width
from launcher.commands._options import add_shared, print_json, request_from, require_one_run
from launcher.preflight.assess import as_json
from launcher.rundir import status
from launcher.submission import interrupts
from launcher.views.check.text import as_text


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_shared(parser, "overrides", "--json", "--no-native", "--engine", "--plot", "--no-measurements")
    add_shared(parser, "--hf", "--partial")
    parser.add_argument("--force", action="store_true", help="start a run that does not fit; this is recorded")
    words = "decide by what `launch rehearse` measured, instead of the memory estimate"
    parser.add_argument("--rehearsed", action="store_true", help=words)
    parser.add_argument("-m", "--multirun", action="store_true", help="a sweep: model=1b,7b, range(..), glob(..)")
    words = "repeat a run, given by its lock, directory or name"
    parser.add_argument("--from", dest="lock", type=Path, metavar="LOCK", help=words)
    add_shared(parser, "--trust")
    parser.add_argument("--debug", action="store_true", help="one rank in the foreground, for pdb")


def run(options: argparse.Namespace) -> int:
    """Start one run and, on this machine, follow it to its end; with -m start a sweep."""
    require_one_run(options, "-m" if options.multirun else None)
    if options.multirun:
        return _run_sweep(options)
    request, show = request_from(RunRequest, options), None if options.json else print
    try:
        found = prepare_run(request, quiet=options.json)
    except Unfit as refused:
        say(as_text(refused.assessment, width()))
        if options.json:
            print_json({"schema": 1, "run": None, "check": as_json(refused.assessment)})
        raise
    with interrupts.held():  # Once it is recorded, the run is either started or removed.
        directory = record_run(found)
        try:
            if show is not None:
                run_data.show_previews(found.samples)
            interrupts.look()
            if request.debug:
                started = debug(directory, found.plan.job.at(str(directory)))
            else:
                started = start(found.plan, directory, show=show)
        except KeyboardInterrupt:
            from launcher.submission.submit import forget

            forget(directory)
            raise
    if options.json and not options.debug:
        row = status.read(directory)
        facts = {"id": row.id, "directory": row.directory, "state": row.state, "job_id": row.job_id}
        check = run_data.with_previews(as_json(found.plan.assessment), found.samples)
        print_json({"schema": 1, "run": facts, "check": check})
    return started


def _run_sweep(options: argparse.Namespace) -> int:
    from launcher.actions import sweep

    request = request_from(sweep.SweepRequest, options)
    require_trust(request.command_line(), trusted=request.trust)
    asked, directory, points, exit_status = sweep.start_sweep(request, show=None if options.json else print)
    if options.json:
        place = {"id": directory.name, "directory": str(directory)}
        print_json({"schema": 1, "sweep": place, "points": sweep.point_rows(directory, points)})
    else:
        for text in (sweep.left_out_text(points), sweep.best_line(asked, directory)):
            if text:
                print(text)
    return exit_status or sweep.status_of(points)
