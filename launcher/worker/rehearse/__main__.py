"""``python -m launcher.worker.rehearse --run FOLDER --rank R --steps N --out FILE [-- ARGUMENTS]``.

If the run cannot be rehearsed, the document holds an ``error``, and the exit status is 2.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from launcher.base.errors import LauncherError
from launcher.base.files import JsonObject, load_json, write_atomically
from launcher.job.memory import Rehearsed
from launcher.spec.parse import parse
from launcher.worker.rehearse import Rehearsal, train_alone


def rehearse(arguments: Sequence[str]) -> tuple[Path, JsonObject]:
    """The output file and its content: a rank's measurements, or an error."""
    options = _parser().parse_args(arguments)
    try:
        spec = parse(load_json(options.run / "spec.json"))
        words = [word for word in options.words if word != "--"]
        asked = Rehearsal(spec=spec, directory=options.run, rank=options.rank, steps=options.steps, words=words)
        return options.out, _rehearse(asked).as_dict()
    except LauncherError as error:
        return options.out, {"schema": 1, "error": str(error)}


def _rehearse(rehearsal: Rehearsal) -> Rehearsed:
    """Load and train the rank: by the backend's module in this package if there is one, else by its engine alone."""
    name = rehearsal.spec.backend.name
    if find_spec(f"launcher.worker.rehearse.{name}") is not None:
        measured: Rehearsed = importlib.import_module(f"launcher.worker.rehearse.{name}").rehearse(rehearsal)
        return measured
    return train_alone(rehearsal, importlib.import_module(f"launcher.worker.{name}.engine").build)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Rehearse one rank of a run on this machine.", allow_abbrev=False)
    parser.add_argument("--run", type=Path, required=True, metavar="FOLDER", help="holds spec.json and the job's files")
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="the rank to rehearse")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="training steps; all but two are only timed")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the document to write")
    parser.add_argument("words", nargs="*", metavar="ARGUMENT", help="an argument of the run's own program")
    return parser


def main() -> NoReturn:
    """Write the document of the rehearsal, and exit."""
    out, content = rehearse(sys.argv[1:])
    write_atomically(out, content)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(2 if "error" in content else 0)  # Frameworks take seconds to clean up.


if __name__ == "__main__":
    main()
