"""Descriptions of decoders whose layers are of several kinds, of ``modeling_<model_type>.py`` in transformers 5.23."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from launcher.estimate.families._decoders.description import Decoder, Experts, Step

type _ValueOf = Callable[[str], Any]

_LETTERS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
_OLD = {"mamba": "linear_attention", "attention": "full_attention"}
_NO_LOSS: Mapping[str, Any] = {"output_router_logits": (False,)}


def _listed(value_of: _ValueOf, layers: int, *, key: str = "layer_types") -> tuple[str, ...]:
    """The words of a list, in today's spelling."""
    named = value_of(key)
    return tuple(_OLD.get(str(word), str(word)) for word in named) if isinstance(named, list | tuple) else ()


def _nemotron(value_of: _ValueOf, layers: int) -> tuple[str, ...]:
    """The list, else the letters of ``hybrid_override_pattern``, else what the class has."""
    named, letters = _listed(value_of, layers, key="layers_block_type"), value_of("hybrid_override_pattern")
    if not named and isinstance(letters, str):
        named = tuple(_LETTERS.get(letter, letter) for letter in letters)
    return named or ("linear_attention", "moe", "full_attention", "mlp")


def _one_norm(kind: str) -> tuple[Step, ...]:
    return (Step(norm="norm", kinds=(kind,)),)


TYPES: dict[str, Decoder] = {
    "nemotron_h": Decoder(
        config="NemotronHConfig",
        table="embeddings",
        last="norm_f",
        first="norm",
        norm_code="gemma",
        attention="mixer",
        mlp="mixer",
        gate="",
        gated=False,
        mlp_bias="mlp_bias",
        fixed={"position_embedding": "none"},
        experts=Experts(
            name="mixer",
            shared="mixer.shared_experts",
            shared_width="moe_shared_expert_intermediate_size",
            latent="moe_latent_size",
            wide=True,
            gated=False,
        ),
        layers=_nemotron,
        steps={
            "linear_attention": _one_norm("mamba2"),
            "full_attention": _one_norm("attention"),
            "mlp": _one_norm("mlp"),
            "moe": _one_norm("experts"),
        },
        sizes={
            "heads": "mamba_num_heads",
            "head_dim": "mamba_head_dim",
            "state": "ssm_state_size",
            "groups": "n_groups",
            "conv": "conv_kernel",
            "chunk": "chunk_size",
            "bias": "use_bias",
            "conv_bias": "use_conv_bias",
            "norm": 1,
        },
        legal=_NO_LOSS,
    ),
}
"""Each model type of several kinds of layers."""
