"""``accelerate estimate-memory``: its column "Training using Adam"."""

from __future__ import annotations

from importlib.util import find_spec

from benchmarks.estimators import _run
from launcher.spec import RunSpec

SOURCE = (
    "imported from the installed accelerate (commands/estimate.py, estimate_training_usage): the largest of model,"
    " gradients, optimizer and step, one whole model on every GPU; no activations, no parallelism"
)
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def predict(spec: RunSpec) -> int | None:
    """Bytes of training with Adam on one device; None where the model is split or sharded, or no accelerate."""
    whole = spec.model_parallel == 1 and _run.zero_stage(spec) == 0
    if not whole or not _run.trains_everything(spec) or spec.precision.compute not in _DTYPES:
        return None
    if find_spec("accelerate") is None:
        return None
    from accelerate.commands.estimate import estimate_training_usage

    usage = estimate_training_usage(4 * _run.parameters(spec), _DTYPES[spec.precision.compute])
    return int(max(usage.values()))
