"""Decoders of ``transformers``: one declarative description a model type, and what follows from it.

``description`` says what a description holds; ``rms_norms``, ``layer_norms`` and ``hybrids`` hold one a type;
``values`` joins a model's sizes with its class's defaults; ``kinds`` has what layers are made of, ``layers`` the kinds
of each layer; ``weights``, ``saved``, ``checks`` and ``reading`` follow.
"""

from launcher.estimate.families._decoders import hybrids, layer_norms, rms_norms
from launcher.estimate.families._decoders.description import Decoder

TYPES: dict[str, Decoder] = {**rms_norms.TYPES, **layer_norms.TYPES, **rms_norms.EXPERTS, **hybrids.TYPES}
"""Each ``model_type`` that is described."""
