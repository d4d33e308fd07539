"""``python -m launcher.worker.trace --spec FILE --out FILE``: trace the run of a ``spec.json``."""

import argparse
import gc
import json
import sys
import warnings
from pathlib import Path

from launcher.base.errors import LauncherError
from launcher.base.files import JsonObject, load_json
from launcher.spec import RunSpec
from launcher.spec.parse import parse
from launcher.worker.trace import adapt_run, depths, refuse


def trace(spec: RunSpec, rank: int) -> JsonObject:
    """The trace report on one rank of a run; TrainingError if the run cannot be traced."""
    refuse(spec)
    gc.disable()
    from launcher.worker.trace.allocator import Depth, Traced, report
    from launcher.worker.trace.one_depth import record  # Late: torch takes seconds.

    gc.freeze()  # Excludes the modules from each collection: scanning them is half of a small trace's time.
    traced = tuple(Depth(layers, record(adapt_run(spec, layers), rank)) for layers in depths(spec))
    return report(
        Traced(depths=traced, layers=spec.model.num_hidden_layers),
        expandable=spec.train.allocator == "expandable",
        cuda=spec.hardware.device == "cuda",
    )


def main() -> int:
    """Read a spec, and write a report or an error."""
    parser = argparse.ArgumentParser(
        description="Trace what a run would allocate, without a GPU and without its other ranks."
    )
    parser.add_argument("--spec", type=Path, required=True, metavar="FILE", help="a spec.json")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the report to write")
    parser.add_argument("--rank", type=int, default=0, help="the rank to trace")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # Frameworks warn when they ask fake tensors for addresses.
    try:
        status, content = 0, trace(parse(load_json(options.spec)), options.rank)
    except LauncherError as error:
        status, content = 2, {"schema": 1, "error": str(error)}
    options.out.write_text(json.dumps(content) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
