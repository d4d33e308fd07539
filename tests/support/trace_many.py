"""Trace several runs in turn, in one process, and write the bytes that each holds."""

from __future__ import annotations

import gc
import json
import warnings
from pathlib import Path

from launcher import backends
from launcher.spec.parse import parse


def main(given: str, found: str) -> None:
    """Trace the specifications of a file.

    Args:
        given: The specifications by name.
        found: File for the bytes of each run in each phase of loading and of the second step, and between two steps.
    """
    from launcher.worker.trace import adapt_run  # Imported here, as in launcher.worker: only ranks need it.
    from launcher.worker.trace.one_depth import record

    warnings.simplefilter("ignore")  # As in the trace itself: fake tensors have no addresses.
    gc.disable()
    answers = {}
    for name, document in json.loads(Path(given).read_text()).items():
        spec = parse(document)
        gc.freeze()  # A trace collects its own garbage and need not scan torch and other traces again.
        recording = record(adapt_run(spec, spec.model.num_hidden_layers), backends.of(spec).fullest_rank(spec))
        moments = recording.peaks(0) | recording.peaks(2)
        answers[name] = {phase: moment.bytes for phase, moment in moments.items()} | {"idle": recording.resting(2)}
    Path(found).write_text(json.dumps(answers))
