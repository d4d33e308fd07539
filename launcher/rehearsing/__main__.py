"""``python -m launcher.rehearsing --run DIRECTORY``: the rehearsal of a Slurm job, on its node.

The run directory holds the question (``rehearse.json``); the answer goes beside it. A run that does not fit is an
answer: status 0.
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
    """Rehearse what the run directory asks for."""
    parser = argparse.ArgumentParser(description="The rehearsal of a recorded job, on this node.")
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
