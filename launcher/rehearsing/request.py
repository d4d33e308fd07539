"""The question of one rehearsal, as its options say it and as a Slurm job reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from launcher.base.files import JsonObject

STEPS = 3
"""The first two are followed, the rest are timed."""

MINUTES = 15
"""For all of its ranks and depths together: a rehearsal is to be short."""

FILE = "rehearse.json"
"""The question in the run directory of a Slurm job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to rehearse of a run.

    Attributes:
        stage: The pipeline stage; None is that which needs the most by the estimate.
        rank: The rank, in place of a stage.
        all_stages: Every stage that holds something else than the others.
        steps: Training steps.
        layers: Layers of the models that are built; empty is the whole model, or what the device can hold of it.
        minutes: The limit on all of it.
    """

    stage: int | None = None
    rank: int | None = None
    all_stages: bool = False
    steps: int = STEPS
    layers: tuple[int, ...] = ()
    minutes: float = MINUTES

    def as_dict(self) -> JsonObject:
        """As JSON."""
        return asdict(self)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Request:
        """The question of a document."""
        return cls(**{**content, "layers": tuple(content["layers"])})
