"""Decoders that ``transformers`` builds and no other family has, by ``model.model_type`` and ``model.extra``.

What differs from type to type is a description (``families._decoders``). The sizes are the keys of ``model``;
all else of a class's configuration is in ``model.extra``, by the class's own names, or the class's default.
"""

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.estimate.families._decoders import TYPES, checks, layers, reading, values, weights, windows
from launcher.estimate.families._decoders import saved as decoder_saved
from launcher.estimate.rank.family import FamilyTraits, TransformersConfig
from launcher.spec import ModelSpec, RunSpec

traits = FamilyTraits(
    experts=True,
    mask=windows.mask,
    window=windows.window,
    attends=layers.attends,
    computed=layers.computed,
    scans=layers.scans,
    sums=layers.sums,
    packages=layers.packages,
    unwrapped=layers.unwrapped,
    choices=checks.of_type,
    narrow_routing=lambda model: True,
    not_linear="blocks of more kinds than this version cuts",
    model_types=tuple(TYPES),
)

saves_input = decoder_saved.saves_input
after_blocks = decoder_saved.after_blocks
first_norm_backward = decoder_saved.first_norm_backward
embedding = weights.embedding
head = weights.head
block = weights.block
saved = decoder_saved.block
backward_extra = decoder_saved.backward_extra
read_config = reading.read


def kind(model: ModelSpec, layer: int) -> str:
    """The word of a layer of several kinds; else those with a window may copy keys and values for a mask."""
    if word := layers.word(model, layer):
        return word
    mlp = "moe" if model.num_experts else "dense"
    return f"{mlp} window" if windows.has_window(model, layer) else mlp


def transformers_config(model: ModelSpec) -> TransformersConfig:
    """The class of the model type, and its arguments."""
    found = values.decoder(model)
    factor, divisor = (values.value(model, key) if key else None for key in (found.logits_factor, found.logits_divisor))
    return TransformersConfig(
        name=found.config,
        settings=values.settings(model),
        own_attention=found.own_attention,
        logits_factor=float(factor or 1.0) / float(divisor or 1.0),
        logits_cap=values.value(model, "final_logit_softcapping") or None,
    )


def not_computed(spec: RunSpec) -> Iterator[ConfigError]:
    """Attention that the class does not have, and axes along which this version does not cut these models."""
    yield from checks.attention(spec)
    yield from checks.tied(spec)
    yield from checks.splitting(spec)
