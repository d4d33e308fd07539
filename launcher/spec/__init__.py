"""One run as frozen data. Every key of docs/contract/commands.md once; numbers that follow from keys are properties.

Defaults live in ``conf/<group>/_base.yaml`` and nowhere else, so no field here has one.
``None`` means "not set": the property or the backend that needs a value says what it takes instead.
"""

from __future__ import annotations

from launcher.spec.cluster import ClusterSpec
from launcher.spec.data import DataSpec
from launcher.spec.hardware import HardwareSpec
from launcher.spec.model import AdapterSpec, ModelSpec
from launcher.spec.output import RunNames, SaveSpec, SweepSpec, TrackingSpec
from launcher.spec.parallel import BackendSpec, ParallelSpec, ZeroSpec
from launcher.spec.run import RunSpec, World
from launcher.spec.training import CheckpointingSpec, OptimizerSpec, PrecisionSpec, TrainSpec
from launcher.spec.values import Count, Device, Dtype, Natural, NonNegative, Offload, Positive, Probability, Range

__all__ = [
    "AdapterSpec",
    "BackendSpec",
    "CheckpointingSpec",
    "ClusterSpec",
    "Count",
    "DataSpec",
    "Device",
    "Dtype",
    "HardwareSpec",
    "ModelSpec",
    "Natural",
    "NonNegative",
    "Offload",
    "OptimizerSpec",
    "ParallelSpec",
    "Positive",
    "PrecisionSpec",
    "Probability",
    "Range",
    "RunNames",
    "RunSpec",
    "SaveSpec",
    "SweepSpec",
    "TrackingSpec",
    "TrainSpec",
    "World",
    "ZeroSpec",
]
