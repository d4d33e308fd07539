"""``python -m launcher.rehearsing --run DIRECTORY``: a rehearsal in a Slurm job, on its node.

The run directory holds the request (``rehearse.json``), and the answer is written next to it. A run that does not fit
is a valid answer: status 0.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from launcher.base import files, typed
from launcher.base.errors import LauncherError
from launcher.preflight import assess
from launcher.rehearsing import device, result
from launcher.rehearsing.choice import FILE, Request
from launcher.rehearsing.rehearse import Stage, rehearse
from launcher.spec.parse import parse


def main() -> int:
    """Run the rehearsal requested in the run directory."""
    parser = argparse.ArgumentParser(description="Run the rehearsal of a recorded job on this node.")
    parser.add_argument("--run", type=Path, required=True, metavar="DIRECTORY")
    directory = parser.parse_args().run
    try:
        content = files.load_json(directory / FILE)
        spec, request = parse(content["spec"]), typed.read(Request, content["request"])
        folder = Path(tempfile.mkdtemp(prefix="rehearsal-", dir=directory))
        place = Stage(device=device.here(), folder=folder, say=_said)
        result.keep(directory, rehearse(spec, assess.estimated(spec), request, place))
    except LauncherError as error:
        _said(f"launch: {error}")
        return error.exit_status
    return 0


def _said(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
