"""Tokenize a recorded run's data before its ranks start: ``python -m launcher.worker.prepare``.

The job's time limit is the only one. Progress goes to the node's log, and the result or error to ``tokens.json`` in the
run directory, which the job's other nodes wait for.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from launcher.base.errors import LauncherError
from launcher.base.files import load_json
from launcher.base.process import Timer
from launcher.base.units import count
from launcher.data import epoch, token_folder
from launcher.data.prepare import Progress, Tell, prepared
from launcher.job import events
from launcher.spec.parse import parse

_REPORT_EVERY_S = 15.0  # Often enough to show progress, rare enough for a log that people read.


def main() -> int:
    """Find or make the token ids of ``--run DIR`` for ``--attempt NAME``; return 0, or 1 with the error recorded."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run directory")
    parser.add_argument("--attempt", required=True, metavar="NAME", help="the attempt of the job")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # An exception cleans up partial files.
    run: Path = options.run
    spec = parse(load_json(run / "spec.json"))
    try:
        found = token_folder.recorded_folder(run, spec.data)
        if found is None:
            root = token_folder.root(spec, os.environ, Path.cwd(), run)
            found = prepared(spec.data, root, tell=_report(), waits=lambda: _say(f"waiting for another run in {root}"))
            if token_folder.digest(run) not in (None, found.digest):
                _say("the data changed since this run began, and the token ids it read before are no longer kept")
        steps = epoch.steps_of(spec, found)
        token_folder.record_folder(run, spec.data, found, options.attempt, steps)
        if found.bad_rows.count:
            events.add(run, "bad_rows", found.bad_rows.sentences, step=None)
    except LauncherError as error:
        token_folder.record_failure(run, str(error), options.attempt)
        print(f"launch: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return 1
    _say(found.text if steps is None else f"{found.text}; the run has {steps:,} steps")
    return 0


def _report() -> Tell:
    began, report = time.monotonic(), Timer(_REPORT_EVERY_S)

    def tell(progress: Progress) -> None:
        if report.is_due():
            speed = progress.text_bytes / (time.monotonic() - began) / 1e6
            text = f"{progress.text_bytes / 1e6:,.0f} MB of text, {speed:.1f} MB/s, " if speed else ""
            _say(f"{text}{count(progress.tokens)} tokens so far")

    return tell


def _say(text: str) -> None:
    print(f"launch: token ids: {text}", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
