"""One run as frozen data: each key of docs/contract/commands.md is a field, each number derived from keys a property.

Defaults live only in ``conf/<group>/_base.yaml``; a field has one here if older records lack its key.
``None`` means "not set": the property or the backend that needs a value documents what it uses instead.
"""

from launcher.spec.hardware import ClusterSpec, HardwareSpec
from launcher.spec.model import AdapterSpec, BackendSpec, ModelSpec, ParallelSpec, ZeroSpec
from launcher.spec.run import RunSpec
from launcher.spec.training import CheckpointingSpec, DataSpec, OptimizerSpec, PrecisionSpec, TrainSpec
from launcher.spec.values import Dtype, Offload

__all__ = [
    "AdapterSpec", "BackendSpec", "CheckpointingSpec", "ClusterSpec", "DataSpec", "Dtype", "HardwareSpec", "ModelSpec",
    "Offload", "OptimizerSpec", "ParallelSpec", "PrecisionSpec", "RunSpec", "TrainSpec", "ZeroSpec",
]  # fmt: skip
