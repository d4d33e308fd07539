"""The layers whose attention sees only a window of tokens, and the masks that windows need."""

from launcher.estimate.families import _transformers
from launcher.estimate.families._decoders import layers, values
from launcher.estimate.rank.engine import EngineTraits
from launcher.spec import ModelSpec


def has_window(model: ModelSpec, layer: int) -> bool:
    """True if a layer has a window: by ``layer_types``, else by the class's own rule."""
    if _window(model) is None:
        return False
    if word := layers.word(model, layer):
        return word.startswith(("sliding", "chunked"))
    kinds = values.value(model, "layer_types")
    if isinstance(kinds, list):
        return bool(kinds[layer : layer + 1] == ["sliding_attention"])
    repeated = values.decoder(model).windows
    every = values.value(model, "sliding_window_pattern")
    if isinstance(every, int) and not isinstance(every, bool) and every > 1:
        repeated = "w" * (every - 1) + "f"
    return not repeated or repeated[layer % len(repeated)] == "w"


def window(model: ModelSpec, layer: int) -> int | None:
    """Most tokens that a layer attends to; None if it attends to all earlier ones."""
    return _window(model) if has_window(model, layer) else None


def is_masked(model: ModelSpec, layer: int, engine: EngineTraits) -> bool:
    """True if a layer's attention gets a mask (``launcher.worker.model.network.window_masks``)."""
    window = _window(model)
    sees_all = window is None or engine.sequence_length <= window
    return model.attention == "sdpa" and not sees_all and has_window(model, layer)


def mask(model: ModelSpec, engine: EngineTraits) -> int:
    """Bytes of the masks of one sequence: with scores one per kind of layer, else only one for a window."""
    every = range(model.num_hidden_layers)
    if not values.decoder(model).attends:
        return 0
    if engine.scores:
        return len({has_window(model, layer) for layer in every}) * _transformers.mask(model, engine)
    masked = any(is_masked(model, layer, engine) for layer in every)
    return engine.size * engine.sequence_length**2 if masked else 0


def _window(model: ModelSpec) -> int | None:
    """Tokens that a layer with a window or in chunks sees; None where the class has none, or it is switched off."""
    window = values.value(model, "sliding_window") or values.value(model, "attention_chunk_size")
    off = values.value(model, "use_sliding_window") is False
    return window if isinstance(window, int) and window and not off else None
