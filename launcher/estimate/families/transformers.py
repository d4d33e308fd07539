"""``transformers`` decoders that have no family of their own, by ``model.model_type`` and ``model.extra``.

Each type has a description of what is particular to it (``families._decoders``). The sizes are the keys of ``model``;
the rest of a class's configuration is in ``model.extra``, under the class's own names, or the class's default.
"""

from collections.abc import Iterator
from dataclasses import replace

from launcher.base.errors import ConfigError
from launcher.estimate.families._decoders import TYPES, checks, layers, reading, values, windows
from launcher.estimate.families._decoders import saved as decoder_saved
from launcher.estimate.families._decoders.description import Decoder
from launcher.estimate.families._decoders.kinds import Part
from launcher.estimate.families._weights import linear
from launcher.estimate.rank.family import FamilyTraits, TransformersConfig
from launcher.estimate.rank.tensors import Weight
from launcher.spec import ModelSpec, RunSpec

traits = FamilyTraits(
    experts=True,
    mask=windows.mask,
    window=windows.window,
    attends=layers.attends,
    computed=layers.computed,
    scans=layers.scans,
    sums=layers.sums,
    joins=lambda model, layer: bool(layers.users(model, layer)),
    packages=layers.packages,
    unwrapped=layers.unwrapped,
    choices=checks.of_type,
    narrow_routing=lambda model: True,
    not_linear="blocks of kinds that this version does not split",
    model_types=tuple(TYPES),
)

saves_input = decoder_saved.saves_input
after_blocks = decoder_saved.after_blocks
first_norm_backward = decoder_saved.first_norm_backward
saved = decoder_saved.block
backward_extra = decoder_saved.backward_extra
read_config = reading.read


def embedding(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """The token embedding, learned positions and the norm of the embeddings."""
    found, hidden = values.decoder(model), model.hidden_size
    width = _outer_width(model)
    rows = [Weight(name=f"{found.table}.weight", shape=(vocabulary, width), split="tensor")]
    if found.positions:
        count = model.max_position_embeddings + found.positions_offset
        rows.append(Weight(name=f"{found.positions}.weight", shape=(count, hidden)))
    if width != hidden:
        rows += linear("project_in", hidden, width, bias=False, split=False)
    return rows + (_norm(found, found.embedding_norm, hidden) if found.embedding_norm else [])


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """Weights of a layer's norms, and of each of its parts."""
    found, hidden = values.decoder(model), model.hidden_size
    norms = dict.fromkeys((found.first, found.after_attention, found.second, found.after_mlp), hidden)
    if found.layers is not None:
        norms = {step.norm: layers.width(Part(model, found, layer), step) for step in layers.steps(model, layer)}
    rows = [weight for name, width in norms.items() if name for weight in _norm(found, name, width)]
    for kind, part in layers.parts(model, layer):
        own = kind.weights(part)
        rows += own if found.layers is None else [replace(one, module=kind.MODULE) for one in own]
    if len(layers.users(model, layer)) < 2:
        return rows
    return [replace(row, outside=row.name.startswith(found.shared)) for row in rows]


def head(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """The last norm and the output projection, whose matrix tied models share with the embedding."""
    found, width = values.decoder(model), _outer_width(model)
    rows = _norm(found, found.last, model.hidden_size) if found.last else []
    if width != model.hidden_size:
        rows += linear("project_out", width, model.hidden_size, bias=False, split=False)
    if not model.tie_word_embeddings:
        rows.append(Weight(name="lm_head.weight", shape=(vocabulary, width), split="tensor"))
    if values.flag(model, found.head_bias):
        rows.append(Weight(name="lm_head.bias", shape=(vocabulary,), split="tensor"))
    return rows + (_of_several(model) if found.shared else [])


def _of_several(model: ModelSpec) -> list[Weight]:
    """Weights that several layers share, each once, under the first of these."""
    found: dict[str, Weight] = {}
    for layer in range(model.num_hidden_layers):
        for row in block(model, layer) if layers.users(model, layer) else ():
            name = f"layers.{layers.users(model, layer)[0]}.{row.name}"
            found |= {name: replace(row, name=name)} if row.outside else {}
    return list(found.values())


def kind(model: ModelSpec, layer: int) -> str:
    """The name of a layer's kind; layers with a window are a kind of their own, as a mask may copy keys and values."""
    if word := layers.word(model, layer):
        return f"{word} alone" if len(layers.users(model, layer)) == 1 else word
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
    """Errors of attention that the class does not support, and of axes that do not split these models."""
    yield from checks.attention(spec)
    yield from checks.tied(spec)
    yield from checks.splitting(spec)


def _norm(found: Decoder, name: str, *shape: int) -> list[Weight]:
    """Weights of a norm, which may have none."""
    parts = [part for part, there in (("weight", found.norm_weight), ("bias", found.norm_bias)) if there]
    return [Weight(name=f"{name}.{part}", shape=shape) for part in parts]


def _outer_width(model: ModelSpec) -> int:
    """Width of the token embedding and the output projection: the hidden size, except for OPT-350M."""
    return values.count(model, "word_embed_proj_dim") or model.hidden_size
