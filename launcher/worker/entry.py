"""The command line of every worker module: ``--run DIR``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from launcher.base.files import load_json
from launcher.data import token_folder
from launcher.data.look import look
from launcher.spec import RunSpec
from launcher.spec.parse import parse
from launcher.worker import process


def main(run: Callable[[RunSpec, Path, list[str]], object], *, arguments: bool = False) -> None:
    """Read the run's specification and train it; the configuration is never composed again.

    Args:
        run: Trains a run in its directory, with the words that follow; what it returns is alive until the process ends.
        arguments: True if any may follow.
    """
    parser = argparse.ArgumentParser(description="One rank of a recorded run; started by torchrun.", allow_abbrev=False)
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run directory")
    options, rest = parser.parse_known_args()
    if rest and not arguments:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    directory: Path = options.run
    if "TORCHELASTIC_RUN_ID" in os.environ:  # Not with ``run --debug``, which starts the rank without an agent.
        process.die_with_agent()
        process.link_logs(directory)
    with process.reported(directory):
        spec = parse(load_json(directory / "spec.json"))
        if os.environ.get("RANK", "0") == "0":
            _look(spec, directory)
        kept = run(spec, directory, rest)
    process.leave(kept)


def _look(spec: RunSpec, directory: Path) -> None:
    """End here for data that cannot be used, before ranks wait for each other or build a model.

    Not where their token ids are made already: what they were made of may be gone since.

    Raises:
        DataError: They cannot be used.
    """
    if spec.backend.path is None and token_folder.pointed(directory, spec.data) is None:
        look(spec.data)
