"""``python -m tests.support.trace_many``: trace the runs of standard input in turn, and print what each holds."""

from __future__ import annotations

import gc
import json
import sys
import warnings

from launcher import backends
from launcher.spec.parse import parse
from launcher.worker.trace.adapt import adapted
from launcher.worker.trace.one_depth import record


def main() -> None:
    """Read specifications by name; write the bytes of each phase of loading and of the second step, and between two."""
    warnings.simplefilter("ignore")  # As the trace itself does: fake tensors have no addresses.
    gc.disable()
    gc.freeze()
    found = {}
    for name, document in json.load(sys.stdin).items():
        spec = parse(document)
        recording = record(adapted(spec, spec.model.num_hidden_layers), backends.of(spec).fullest_rank(spec))
        moments = recording.peaks(0) | recording.peaks(2)
        found[name] = {phase: moment.bytes for phase, moment in moments.items()} | {"idle": recording.resting(2)}
    sys.stdout.write(f"\n{json.dumps(found)}\n")  # On a line of its own: DeepSpeed prints too.


if __name__ == "__main__":
    main()
