"""The parameters of a decoder, by its description."""

from dataclasses import replace

from launcher.estimate.families._decoders import layers, values
from launcher.estimate.families._decoders.description import Decoder
from launcher.estimate.families._weights import linear
from launcher.estimate.rank.tensors import Weight
from launcher.spec import ModelSpec


def embedding(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """The token table, learned positions and the norm of the embeddings."""
    found, hidden = values.decoder(model), model.hidden_size
    width = _outer_width(model)
    rows = [Weight(name=f"{found.table}.weight", shape=(vocabulary, width), split="tensor")]
    if found.positions:
        count = model.max_position_embeddings + found.positions_offset
        rows.append(Weight(name=f"{found.positions}.weight", shape=(count, hidden)))
    if width != hidden:
        rows += linear("project_in", hidden, width, bias=False, split=False)
    return rows + (norm(found, found.embedding_norm, hidden) if found.embedding_norm else [])


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """The norms and what each kind of a layer has."""
    found, hidden = values.decoder(model), model.hidden_size
    names: tuple[str, ...] = (found.first, found.after_attention, found.second, found.after_mlp)
    if found.layers is not None:
        names = tuple(step.norm for step in layers.steps(model, layer))
    rows = [weight for name in names if name for weight in norm(found, name, hidden)]
    for kind, part in layers.parts(model, layer):
        own = kind.weights(part)
        rows += own if found.layers is None else [replace(one, module=kind.MODULE) for one in own]
    return rows


def head(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """The last norm and the output projection, whose matrix tied models share with the embedding."""
    found, width = values.decoder(model), _outer_width(model)
    rows = norm(found, found.last, model.hidden_size) if found.last else []
    if width != model.hidden_size:
        rows += linear("project_out", width, model.hidden_size, bias=False, split=False)
    if not model.tie_word_embeddings:
        rows.append(Weight(name="lm_head.weight", shape=(vocabulary, width), split="tensor"))
    if values.flag(model, found.head_bias):
        rows.append(Weight(name="lm_head.bias", shape=(vocabulary,), split="tensor"))
    return rows


def norm(found: Decoder, name: str, *shape: int) -> list[Weight]:
    """A norm, which may have no weights at all."""
    parts = [part for part, there in (("weight", found.norm_weight), ("bias", found.norm_bias)) if there]
    return [Weight(name=f"{name}.{part}", shape=shape) for part in parts]


def _outer_width(model: ModelSpec) -> int:
    """Width of the token table and the output projection: the hidden size, but for OPT-350M."""
    return values.count(model, "word_embed_proj_dim") or model.hidden_size
