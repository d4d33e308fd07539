"""Decoders of ``transformers``: one declarative description a model type, and what follows from it.

``description`` says what a description holds; ``rms_norms`` and ``layer_norms`` hold one a type;
``values`` joins a model's sizes with its class's defaults; ``weights``, ``saved``, ``checks`` and ``reading`` follow.
"""

from __future__ import annotations

from launcher.estimate.families._decoders import layer_norms, rms_norms
from launcher.estimate.families._decoders.description import Decoder

TYPES: dict[str, Decoder] = {**rms_norms.TYPES, **layer_norms.TYPES, **rms_norms.EXPERTS}
"""Each ``model_type`` that is described."""
