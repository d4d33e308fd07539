"""One run as frozen data. Every key of docs/contract/commands.md once; numbers that follow from keys are properties.

Defaults live in ``conf/<group>/_base.yaml`` and nowhere else, so no field here has one.
``None`` means "not set": the property or the backend that needs a value says what it takes instead.
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
