"""The letters of a hybrid's layers in a Megatron-LM argument list, and the sizes of its Mamba mixer.

``--hybrid-layer-pattern M-M*-|M-M*-/*E/*E``: a letter for each layer, ``|`` between model chunks, and behind each ``/``
the letters of one depth of multi-token prediction (``core/models/hybrid/hybrid_layer_allocation.py`` of 0.19.2).
"""

from __future__ import annotations

from typing import Any

from launcher.base.frozen import dataclass
from launcher.config.ledger import Settings
from launcher.importers.megatron.reader import Reader

_LETTERS = {"M", "*", "-", "E"}
_OTHERS = {"G": "gated delta nets", "D": "DeepSeek's sparse attention", "+": "latent attention"}
_NAMES = ("hybrid-layer-pattern", "hybrid-override-pattern")
_SIZES = ("mamba-num-heads", "mamba-head-dim", "mamba-state-dim", "mamba-num-groups")
_SAYS = "model.extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The letters of a list."""

    chunks: tuple[str, ...]  # Of each model chunk, in the order of the model.
    further: tuple[str, ...]  # Of each depth of multi-token prediction.

    @property
    def layers(self) -> str:
        """Of all layers."""
        return "".join(self.chunks)

    @property
    def layout(self) -> list[str]:
        """The chunks as ``parallel.layout`` has them; none where the list does not say them."""
        if len(self.chunks) == 1:
            return []
        parts = ["t" * len(chunk) for chunk in self.chunks]
        return [f"E{parts[0]}", *parts[1:-1], f"{parts[-1]}{'m' * len(self.further)}L"]


def pattern(reader: Reader) -> Pattern | None:
    """The letters of the layers; None where the list is of no hybrid, or of one whose letters are not known."""
    name = next((name for name in _NAMES if name in reader), None)
    text = reader.text(name, f"{_SAYS}.pattern") if name else None
    if name is None or text is None:
        return None
    main, *further = text.replace("\\", "").strip("\"' ").split("/")
    old = reader.text("mtp-hybrid-override-pattern", f"{_SAYS}.mtp")
    if old and not further:
        further = [old] * int(reader.count("mtp-num-layers", "model.mtp_layers", default=1))
    found = Pattern(chunks=tuple(main.split("|")), further=tuple(part for part in further if part))
    wrong = sorted({*found.layers, *"".join(found.further)} - _LETTERS)
    if wrong or not found.layers:
        known = _OTHERS.get(wrong[0] if wrong else "", "a kind that Megatron-core does not know either")
        rule = f"its layers are Mamba (M), attention (*), MLP (-) or experts (E) here, and {wrong or 'none'} is {known}"
        reader.wrong(name, text, rule)
        return None
    if len({*found.further}) > 1:
        reader.wrong(name, text, "all depths of multi-token prediction have the same letters")
        return None
    return found


def model(reader: Reader, found: Pattern, settings: Settings) -> Settings:
    """The keys of ``model`` of a hybrid, whose other sizes are in ``settings``."""
    counts = {name.replace("-", "_"): reader.count(name, f"{_SAYS}.{name.replace('-', '_')}") for name in _SIZES}
    shared = reader.count("moe-shared-expert-intermediate-size", f"{_SAYS}.shared_width")
    repeated = reader.switch("mtp-use-repeated-layer", f"{_SAYS}.mtp_shared")
    extra: dict[str, Any] = {
        "pattern": found.layers,
        **{key: value for key, value in counts.items() if value is not None},
        **({"shared_width": shared} if shared else {}),
        **({"latent": latent} if (latent := reader.count("moe-latent-size", f"{_SAYS}.latent")) else {}),
        **({"mtp": found.further[0], "mtp_shared": repeated} if found.further else {}),
    }
    reader.switch("is-hybrid-model", f"{_SAYS}.pattern")
    return {
        **settings,
        "family": "hybrid",
        "num_hidden_layers": len(found.layers),
        "mtp_layers": len(found.further),
        "num_shared_experts": 0,
        "first_dense_layers": 0,
        "attention_output_bias": settings["mlp_bias"] or None,
        "extra": extra,
    }
