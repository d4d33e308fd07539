"""Measure the matrix on this machine's first GPU, each run in its own process, and write one JSON file.

This module imports only the standard library and uses no syntax newer than Python 3.8, so that it can report what is
missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.wheels import WheelError, unpack_missing

_ROOT = Path(__file__).parents[2]
_PYTHON = (3, 12)
_MACHINES_OWN = ("torch", "transformers")


def main() -> int:
    """Measure and write.

    Returns:
        0; 1 where no run could be measured, 2 where the benchmark cannot begin on this machine.
    """
    options = _parser().parse_args()
    if sys.version_info < _PYTHON:
        version = ".".join(map(str, sys.version_info[:2]))
        return _refuse(f"it needs Python 3.12 or later, and this is {version}: {sys.executable}")
    missing = [name for name in _MACHINES_OWN if find_spec(name) is None]
    if missing:
        return _refuse(
            f"{' and '.join(missing)} cannot be imported by {sys.executable}: start it by a Python with them"
        )
    with tempfile.TemporaryDirectory(prefix="launch-gpu-") as name:
        try:
            _add_missing(options.wheels, Path(name) / "packages")
        except WheelError as error:
            return _refuse(str(error))
        if find_spec("hydra") is None:
            return _refuse(
                "hydra-core is not installed here: give --wheels DIR, the folder that `make gpu-wheels` fills"
            )
        from benchmarks.gpu.start import start

        return start(options, Path(name))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0])
    out = "where to write; benchmarks/results/gpu.json, of a rehearsal build/gpu-rehearsal.json"
    wheels = "a folder of wheels (make gpu-wheels); what is not installed here is taken from it"
    parser.add_argument("--wheels", type=Path, metavar="DIR", help=wheels)
    parser.add_argument("--out", type=Path, metavar="FILE", help=out)
    parser.add_argument("--only", metavar="TEXT", default="", help="rows whose name has this text")
    parser.add_argument(
        "--minutes", type=float, default=8.0, metavar="N", help="start no row after this many minutes (8)"
    )
    parser.add_argument("--resume", action="store_true", help="keep the rows of FILE that have an answer")
    parser.add_argument("--rehearse", action="store_true", help="every row with a tiny model on the CPU: no result")
    return parser


def _add_missing(folder: Path | None, target: Path) -> None:
    """Add missing packages to the path of this Python and of every process that it starts."""
    unpacked = [] if folder is None else unpack_missing(folder, target)
    if unpacked:
        print(f"unpacked what is not installed here: {', '.join(unpacked)}", flush=True)
        sys.path.insert(1, str(target))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(target), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        os.environ["PATH"] = os.pathsep.join([str(target / "bin"), os.environ.get("PATH", "")])


def _refuse(reason: str) -> int:
    print(f"benchmarks.gpu: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
