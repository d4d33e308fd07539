"""The layers of decoders with several kinds of layers, from ``modeling_<model_type>.py`` in transformers 5.23."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from launcher.base.files import JsonObject
from launcher.estimate.families._decoders.description import Step, Words

type _ValueOf = Callable[[str], Any]

_LETTERS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
_OLD = {"mamba": "linear_attention", "attention": "full_attention"}


def _listed(value_of: _ValueOf, layers: int, *, key: str = "layer_types") -> tuple[str, ...]:
    """The kinds in a list of layers, by their current names."""
    named = value_of(key)
    return tuple(_OLD.get(str(word), str(word)) for word in named) if isinstance(named, list | tuple) else ()


def _nemotron(value_of: _ValueOf, layers: int) -> tuple[str, ...]:
    """The kinds by the list, else by the letters of ``hybrid_override_pattern``, else the class's default."""
    named, letters = _listed(value_of, layers, key="layers_block_type"), value_of("hybrid_override_pattern")
    if not named and isinstance(letters, str):
        named = tuple(_LETTERS.get(letter, letter) for letter in letters)
    return named or ("linear_attention", "moe", "full_attention", "mlp")


def _intervals(value_of: _ValueOf, layers: int) -> tuple[str, ...]:
    """Attention in every n-th layer, and experts except where ``mlp_only_layers`` or the step excludes them."""
    every, step, dense = (
        value_of("full_attention_interval") or 4,
        value_of("decoder_sparse_step") or 1,
        value_of("mlp_only_layers") or (),
    )
    mixers = _listed(value_of, layers) or tuple(
        "linear_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)
    )
    routed = [
        bool(value_of("num_experts")) and layer not in dense and (layer + 1) % step == 0 for layer in range(len(mixers))
    ]
    return tuple(f"{mixer} {'moe' if moe else 'mlp'}" for mixer, moe in zip(mixers, routed, strict=True))


def _zamba2(value_of: _ValueOf, layers: int) -> tuple[str, ...]:
    """The kinds by the list, else by the class's pattern of 54 layers."""
    default = "MMMMMM*" + "MMMMM*" * 6 + "MMMM*MMM*MM"
    return _listed(value_of, layers, key="layers_block_type") or tuple(
        "hybrid" if letter == "*" else "linear_attention" for letter in default
    )


def _granite(value_of: _ValueOf, layers: int) -> tuple[str, ...]:
    """The kinds by the list; all layers have experts, or none."""
    mixers = _listed(value_of, layers) or ("linear_attention",) * layers
    return tuple(f"{mixer} {'moe' if value_of('num_local_experts') else 'mlp'}" for mixer in mixers)


def _periods(value_of: _ValueOf, layers: int) -> tuple[str, ...]:
    """Attention and experts, each at its own offset in its period of layers."""

    def met(kind: str, layer: int) -> bool:
        period, offset = value_of(f"{kind}_layer_period") or 1, value_of(f"{kind}_layer_offset") or 0
        return bool(layer % period == offset)

    return tuple(
        f"{'full' if met('attn', layer) else 'linear'}_attention"
        f" {'moe' if met('expert', layer) and value_of('num_experts') > 1 else 'mlp'}"
        for layer in range(layers)
    )


def _indexed(value_of: _ValueOf, layers: int) -> tuple[str, ...]:
    """Attention in the layers that ``attn_layer_indices`` names."""
    named = value_of("attn_layer_indices") or ()
    return tuple(f"{'full' if layer in named else 'linear'}_attention mlp" for layer in range(layers))


def _llama_4(value_of: _ValueOf, layers: int) -> tuple[str, ...]:
    """Layers without rotation, which attend to all tokens, and experts, both at intervals unless a list names them."""
    interval, step = value_of("no_rope_layer_interval") or 4, value_of("interleave_moe_layer_step") or 1
    rotated = value_of("no_rope_layers") or [int((layer + 1) % interval != 0) for layer in range(layers)]
    named = _listed(value_of, layers) or tuple(f"{'chunked' if one else 'full'}_attention" for one in rotated)
    routed = value_of("moe_layers")
    routed = range(step - 1, layers, step) if routed is None else routed
    return tuple(
        f"{word} {'rotated' if one else 'unrotated'} {'moe' if layer in routed else 'mlp'}"
        for layer, (word, one) in enumerate(zip(named, rotated, strict=False))
    )


def _mimo(value_of: _ValueOf, layers: int) -> tuple[str, ...]:
    """Full attention in the first and every sixth layer, and an MLP in the first, unless lists name them."""
    named = _listed(value_of, layers) or tuple(
        f"{'full' if layer == 0 or (layer + 1) % 6 == 0 else 'sliding'}_attention" for layer in range(layers)
    )
    behind = _listed(value_of, layers, key="mlp_layer_types") or ("dense", *["sparse"] * (layers - 1))
    return tuple(f"{word} {'moe' if mlp == 'sparse' else 'mlp'}" for word, mlp in zip(named, behind, strict=False))


def _pairs(first: Mapping[str, Step], norm: str = "", experts: str = "experts") -> dict[str, tuple[Step, ...]]:
    """The steps of layers by kind: one mixer each, and an MLP or experts."""
    return {
        f"{word} {behind}": (step, Step(norm=norm or "post_attention_layernorm", kinds=(kind,)))
        for word, step in first.items()
        for behind, kind in (("mlp", "mlp"), ("moe", experts))
    }


def _first(kind: str, **own: Any) -> Step:
    return Step(norm="input_layernorm", kinds=(kind,), own=own)


def _two_norms(mixer: str, norm: str = "") -> dict[str, tuple[Step, ...]]:
    return _pairs({"linear_attention": _first(mixer), "full_attention": _first("attention")}, norm)


def _one_norm(kind: str) -> tuple[Step, ...]:
    return (Step(norm="norm", kinds=(kind,)),)


_BOTH = (Step(norm="input_layernorm", kinds=("mamba2", "attention")),)
_UNROTATED = _first("attention", fixed={"position_embedding": "none"}, head_norms=())
_LLAMA_4 = _pairs(
    {
        f"{seen}_attention {word}": step
        for seen in ("chunked", "full")
        for word, step in (("rotated", _first("attention")), ("unrotated", _UNROTATED))
    },
    experts="scored_experts",
)
_SLIDING = _first("attention", sinks=True, keys_factor=2)
_MIMO = _pairs({"full_attention": _first("attention"), "sliding_attention": _SLIDING})

_REUSED = "shared_transformer"
_ZAMBA_2 = (
    Step(
        norm=f"{_REUSED}.input_layernorm", kinds=("attention",), own={"attention": f"{_REUSED}.self_attn"}, summed=False
    ),
    Step(
        norm=f"{_REUSED}.pre_ff_layernorm",
        kinds=("mlp",),
        own={"mlp": f"{_REUSED}.feed_forward", "beside": {"gate_up_proj": "gate_up_proj_adapter_list"}},
    ),
    Step(norm="mamba_decoder.input_layernorm", kinds=("mamba2",), own={"mixer": "mamba_decoder.mamba"}),
)
_ADAPTED = replace(
    _ZAMBA_2[0], own={**_ZAMBA_2[0].own, "beside": {f"{each}_proj": f"linear_{each}_adapter_list" for each in "qkv"}}
)
_ZAMBA_2_STEPS = {"linear_attention": (_first("mamba2"),), "hybrid": _ZAMBA_2}


def _all(word: str) -> Words:
    return lambda _, layers: (word,) * layers


def _of(layers: Words, steps: Mapping[str, tuple[Step, ...]]) -> JsonObject:
    return {"layers": layers, "steps": steps}


LAYERED: Mapping[str, Mapping[str, Any]] = {
    "bamba": _of(_indexed, _two_norms("mamba2", "pre_ff_layernorm")),
    "falcon_h1": _of(_all("hybrid"), {"hybrid": (*_BOTH, Step(norm="pre_ff_layernorm", kinds=("mlp",)))}),
    "llama4_text": _of(_llama_4, _LLAMA_4),
    "mimo_v2_flash": _of(_mimo, _MIMO),
    "nemotron_h": _of(
        _nemotron,
        {
            "linear_attention": _one_norm("mamba2"),
            "full_attention": _one_norm("attention"),
            "mlp": _one_norm("mlp"),
            "moe": _one_norm("experts"),
        },
    ),
    "granitemoehybrid": _of(_granite, _two_norms("mamba2")),
    "jamba": _of(_periods, _two_norms("mamba1", "pre_ff_layernorm")),
    "zamba2": {
        **_of(_zamba2, _ZAMBA_2_STEPS),
        "variants": (
            ("use_mem_rope", True, {"fixed": {}}),
            ("use_shared_attention_adapter", True, {"steps": {**_ZAMBA_2_STEPS, "hybrid": (_ADAPTED, *_ZAMBA_2[1:])}}),
        ),
    },
    **dict.fromkeys(
        ("falcon_mamba", "mamba"), _of(_all("linear_attention"), {"linear_attention": _one_norm("mamba1")})
    ),
    "mamba2": _of(_all("linear_attention"), {"linear_attention": _one_norm("mamba2")}),
    **dict.fromkeys(("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), _of(_intervals, _two_norms("gated_delta"))),
}
"""The fields of each type that say what its layers are."""
