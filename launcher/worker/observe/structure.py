"""The structure of a ``transformers`` model on the meta device: parameters by place, and layers by kind."""

import dataclasses
import inspect
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers.modeling_outputs import MoeModelOutputWithPast

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.worker.model.network import CAUSAL_SDPA, every_block, shared_modules

_ROUTED = re.compile(r"(?:^|\.)experts(?:\.|$)")
"""Matches the path of experts that are separate modules."""

_MARKS = ("layer_type", "sliding_window", "is_sliding", "attention_type", "has_experts", "use_rope", "is_causal")
"""Attributes of modules by which layers of equal parameters may compute differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """A model on the meta device and its layers."""

    model: Any  # A ``transformers`` model.
    blocks: nn.ModuleList  # Its layers.
    path: str  # The path of the layers in the model.
    kinds: Mapping[str, int]  # The first layer of each kind, by the kind's name.
    shapes: Mapping[str, Mapping[str, list[int]]]  # Parameters of a layer of each kind, except shared ones.
    shared: Mapping[str, Mapping[str, list[int]]]  # Parameters shared by layers that a layer of each kind uses.
    layers: tuple[str, ...]  # The kind of each layer.
    why: str = ""  # Why none of launch's engines can run such layers.


def configuration(content: Mapping[str, Any]) -> Any:
    """The ``transformers`` configuration with the values of a ``config.json``."""
    kind = str(content["model_type"])
    made = transformers.CONFIG_MAPPING[kind]
    return made(**{key: value for key, value in content.items() if key not in ("model_type", "architectures")})


_SIZES: Mapping[str, Any] = {
    "num_hidden_layers": None, "hidden_size": None, "intermediate_size": None, "num_attention_heads": 1,
    "vocab_size": None, "max_position_embeddings": 2**20, "tie_word_embeddings": False, "initializer_range": 0.02,
    "num_key_value_heads": "", "head_dim": "", "num_experts": 0, "num_experts_per_tok": 0, "moe_intermediate_size": 0,
}  # fmt: skip
"""Keys of ``model`` that configurations have under the same name, and their defaults (None: the hidden size)."""

_OTHERS = {
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k", "moe_topk", "moe_top_k", "top_k_experts"),
    "moe_intermediate_size": ("expert_ffn_hidden_size", "ffn_hidden_size"),
}


def sizes(config: Any) -> JsonObject:
    """The sizes of a model by the keys of ``model``; sizes that its class lacks get neutral values."""
    made: JsonObject = {}
    own = config.get_text_config()
    for key, neutral in _SIZES.items():
        names = (key, *_OTHERS.get(key, ()))
        value = next((each for name in names if isinstance(each := _value(own, name), int | float) and each), neutral)
        made[key] = None if value == "" else made.get("hidden_size", 1) if value is None else value
    if not made["num_experts"]:
        return {**made, "num_experts_per_tok": 0, "moe_intermediate_size": 0}
    return {
        **made,
        "num_experts_per_tok": made["num_experts_per_tok"] or made["num_experts"],
        "moe_intermediate_size": made["moe_intermediate_size"] or made["intermediate_size"],
    }


def _value(config: Any, name: str) -> object:
    """A value of a configuration or a nested one (``ffn_config`` of DBRX); for a list of equal values, that value."""
    inner = (getattr(config, part, None) for part in config.sub_configs)
    try:
        value = next((found for each in (config, *inner) if (found := getattr(each, name, None)) is not None), None)
    except Exception:  # transformers raises if layers differ in the value.
        return None
    return value[0] if isinstance(value, list) and value and value.count(value[0]) == len(value) else value


_READ = re.compile(r"config\.([a-z_]\w*)|(?:getattr\((?:self\.)?config, |kwargs\.(?:pop|get)\()['\"](\w+)")
_SET = re.compile(r"self\.([a-z_]\w*) = ")


def reads(model: Any) -> list[str]:
    """The keys of ``config.json`` that the model's class, or its configuration's class, reads or writes."""
    kind = type(model.config)
    fields = {each.name for each in dataclasses.fields(kind)}
    code, own = (inspect.getsource(sys.modules[each.__module__]) for each in (type(model), kind))
    rotary = ("rope_theta", "rope_scaling", "partial_rotary_factor") if "rope_parameters" in fields else ()
    found = {name for each in _READ.findall(own + code) for name in each if name}
    other = (*_SET.findall(own), *kind.attribute_map, *kind.attribute_map.values(), *rotary)
    return sorted({*found, *fields, *other})


def attentions(config: Any) -> tuple[str, ...]:
    """Attention implementations to try, best first: SDPA without a mask, with the class's mask, and eager."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING as CLASSES

    return (CAUSAL_SDPA, "sdpa", "eager") if CLASSES[type(config)]._supports_sdpa else ("eager",)


def structure(config: Any, dtype: torch.dtype = torch.float32, attention: str = "eager") -> Structure:
    """Build a model on the meta device and group its layers by kind."""
    with torch.device("meta"):
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    made.config.use_cache = False
    path, blocks, why = _blocks(made)
    names: dict[str, str] = {}
    shapes: dict[str, dict[str, list[int]]] = {}
    shared: dict[str, dict[str, list[int]]] = {}
    layers, several = [], {id(each) for module in shared_modules(blocks) for each in module.parameters()}
    for block in blocks:
        every = {name: (id(each) in several, list(each.shape)) for name, each in block.named_parameters()}
        signature = f"{every} {_modules(block)}"
        if signature not in names:
            names[signature] = _name(block, set(names.values()))
            shapes[names[signature]] = {name: shape for name, (used, shape) in every.items() if not used}
            shared[names[signature]] = {name: shape for name, (used, shape) in every.items() if used}
        layers.append(names[signature])
    kinds = {name: layers.index(name) for name in shapes}
    return Structure(
        model=made, blocks=blocks, path=path, kinds=kinds, shapes=shapes, shared=shared, layers=tuple(layers), why=why
    )


def _blocks(made: Any) -> tuple[str, nn.ModuleList, str]:
    """Path and list of the layers; if they are not where decoders have them, the largest list, and a reason."""
    lists = {path: module for path, module in made.named_modules() if isinstance(module, nn.ModuleList) and len(module)}
    usual = next((path for path, module in lists.items() if module is every_block(made, None)), None)
    if usual is not None:
        return usual, lists[usual], ""
    path = max(lists, key=lambda path: sum(each.numel() for each in lists[path].parameters()))
    return path, lists[path], f"its layers are in {', '.join(lists)}, but engines need one list such as model.layers"


def _modules(block: nn.Module) -> list[Any]:
    return [
        (path, type(module).__name__, *(getattr(module, mark, None) for mark in _MARKS))
        for path, module in block.named_modules()
    ]


def _name(block: nn.Module, taken: set[str]) -> str:
    words = [name for name, child in block.named_children() if any(each.dim() > 1 for each in child.parameters())]
    if any(each.dim() > 2 and "experts" in name for name, each in block.named_parameters()):
        words.append("experts")
    windows = {getattr(module, "sliding_window", None) for module in block.modules()} - {None}
    plain = " ".join(dict.fromkeys([*words, *(["window"] if windows else [])])) or "layer"
    return plain if plain not in taken else f"{plain} {sum(name.startswith(plain) for name in taken) + 1}"


def weights(found: Structure) -> JsonObject:
    """Shapes of the parameters before, in and after the layers, by name; tied ones once."""
    before: JsonObject = {}
    after: JsonObject = {}
    several = {id(each) for module in shared_modules(found.blocks) for each in module.parameters()}
    own = {id(each) for each in found.blocks.parameters()}
    seen = False
    for name, each in found.model.named_parameters():
        if id(each) in own:
            seen = True
        if id(each) not in own or id(each) in several:
            (after if seen else before)[name] = list(each.shape)
    shared = {"shared": dict(found.shared)} if several else {}
    return {"before": before, "after": after, "kinds": dict(found.shapes), **shared, "linears": linears(found)}


def linears(found: Structure) -> list[str]:
    """Names of the layers' linears that an adapter may wrap: none of experts, routers, or read directly by a kernel.

    State-space kernels read the weights of all their linears except the first (``mamba_inner_fn`` of mamba-ssm).
    """
    names: dict[str, bool] = {}
    for layer in found.kinds.values():
        scans = {
            path.rpartition(".")[0] for path, each in found.blocks[layer].named_modules() if path.endswith("conv1d")
        }
        for path, each in found.blocks[layer].named_modules():
            place, _, name = path.rpartition(".")
            if isinstance(each, nn.Linear | nn.Conv1d):
                plain = (
                    type(each) is nn.Linear and not _ROUTED.search(place) and (place not in scans or name == "in_proj")
                )
                names[name] = names.get(name, True) and plain
    return [name for name, plain in names.items() if plain and name not in ("gate", "router")]


_VALUES = (1e-6, 0.5, 3.0, 40.0, 1e9)


class _Output(MoeModelOutputWithPast):  # type: ignore[misc]  # transformers has no types.
    """An output with hidden states only; any other attribute is None."""

    def __getattr__(self, name: str) -> None:
        return None


def logits(made: Any, name: str) -> tuple[float, float | None] | None:
    """The factor and the cap of the logits; None if they are computed in another way.

    ``name`` is the attribute of ``made`` that holds the network without its head; ``made`` cannot be used afterwards.
    """
    hidden = torch.tensor(_VALUES, dtype=torch.float64).view(1, -1, 1)
    network, head = getattr(made, name), nn.Identity()
    for module in (network, getattr(network, "decoder", network)):  # OPT's class calls the decoder itself.
        module.forward = lambda *_, **__: _Output(last_hidden_state=hidden)
    head.weight = nn.Parameter(torch.ones((1, 1), dtype=torch.float64))  # A class may read its dtype.
    made.set_output_embeddings(head)
    try:
        found = made(input_ids=torch.zeros((1, len(_VALUES)), dtype=torch.int64), use_cache=False).logits.double()
    except Exception:  # Any class's code runs here, and may need more than hidden states.
        return None
    first, last = (float(found.flatten()[place]) for place in (0, -1))
    factor = first / _VALUES[0]
    cap = None if math.isclose(last, factor * _VALUES[-1], rel_tol=1e-3) else last
    expected = hidden * factor if cap is None else torch.tanh(hidden * factor / cap) * cap
    return (round(factor, 9), cap) if torch.allclose(found, expected, rtol=1e-3) else None
