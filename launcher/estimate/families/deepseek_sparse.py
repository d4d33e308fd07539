"""DeepSeek-V3.2 and GLM-5: latent attention to the tokens that an indexer chooses (DSA, arXiv:2512.02556).

``transformers`` computes all scores and masks those that were not chosen; the indexer runs without gradients, so that
its weights are not trained (``DeepseekV32Indexer.forward`` of ``modeling_deepseek_v32.py``).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.estimate import families
from launcher.estimate.families import deepseek, moe
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.family import ConfigFile, TransformersConfig
from launcher.estimate.rank.tensors import SavedTensor, Weight
from launcher.spec import ModelSpec, RunSpec, edit

_CONFIGS: Mapping[str, str] = {"deepseek_v32": "DeepseekV32Config", "glm_moe_dsa": "GlmMoeDsaConfig"}
_INDEXER = ("index_topk", "index_head_dim", "index_n_heads")  # Sizes of the indexer, which both classes have.

_SHARING = ("indexer_types", "index_topk_freq", "index_skip_topk_offset", "index_topk_pattern")
"""Keys by which layers of GLM-5 reuse the tokens that another layer chose (``GlmMoeDsaConfig.__post_init__``)."""

_UNCUT = ("tensor", "pipeline", "context", "ulysses")


def _keys(kind: str) -> tuple[str, ...]:
    return (*_INDEXER, *(_SHARING if kind == "glm_moe_dsa" else ()))


def choices(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of another model type, or of keys that its class does not have."""
    model, known = spec.model, (*_CONFIGS,)
    if model.model_type not in known:
        ways = [f"model.model_type={each}" for each in known]
        yield ConfigError("model.model_type", model.model_type, f"this family is {' or '.join(known)}", ways)
        return
    own = _keys(model.model_type)
    for key, value in model.extra.items():
        if key not in own:
            rule = f"transformers' {model.model_type} has {', '.join(own)}"
            yield ConfigError(f"model.extra.{key}", value, rule, [])
        elif key in _INDEXER and (type(value) is not int or value < 1):
            rule = "is a whole number of at least 1"
            yield ConfigError(
                f"model.extra.{key}", value, rule, [edit.override(f"model.extra.{key}", _size(model, key))]
            )


traits = replace(
    deepseek.traits,
    mask=lambda model, engine: engine.residual_size * engine.sequence_length**2,
    masks_tokens=True,
    not_linear="the indexer, which is computed without gradients",
    names=None,
    model_types=(*_CONFIGS,),
    choices=choices,
)

embedding = deepseek.embedding
head = deepseek.head
after_blocks = deepseek.after_blocks
first_norm_backward = deepseek.first_norm_backward
saves_input = deepseek.saves_input
backward_extra = deepseek.backward_extra


def kind(model: ModelSpec, layer: int) -> str:
    """Experts or an MLP, and whether the layer has its own indexer."""
    return f"{moe.kind(model, layer)}{'' if _has_indexer(model, layer) else ' reusing'}"


def _has_indexer(model: ModelSpec, layer: int) -> bool:
    return model.model_type != "glm_moe_dsa" or _indexers(model)[layer] == "full"


def _indexers(model: ModelSpec) -> list[str]:
    """``full`` for a layer with an indexer, ``shared`` for one without."""
    given, pattern = model.extra.get("indexer_types"), model.extra.get("index_topk_pattern")
    if given is not None or pattern is not None:
        words = {"F": "full", "S": "shared"}
        found = [words.get(str(each), str(each)) for each in (pattern if given is None else given) or ()]
        return [*found, *["full"] * (model.num_hidden_layers - len(found))]
    every = max(int(model.extra.get("index_topk_freq", 1)), 1)
    offset = int(model.extra.get("index_skip_topk_offset", 2))
    layers = range(model.num_hidden_layers)
    return ["full" if max(layer - offset + 1, 0) % every == 0 else "shared" for layer in layers]


def _size(model: ModelSpec, key: str) -> int:
    kind = model.model_type if model.model_type in _CONFIGS else "deepseek_v32"
    own: int = families.classes()["classes"][kind]["defaults"][key]
    found = model.extra.get(key, own)
    return found if type(found) is int else own


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """Weights of a block of DeepSeek-V3 and of the indexer: queries from their latent, one key, weights per head."""
    weights = deepseek.block(model, layer)
    if not _has_indexer(model, layer):
        return weights
    heads, size, hidden = _size(model, "index_n_heads"), _size(model, "index_head_dim"), model.hidden_size
    shapes = {
        "wq_b.weight": (heads * size, model.q_lora_rank), "wk.weight": (size, hidden), "k_norm.weight": (size,),
        "k_norm.bias": (size,), "weights_proj.weight": (heads, hidden),
    }  # fmt: skip
    own = [Weight(name=f"self_attn.indexer.{name}", shape=shape, frozen=True) for name, shape in shapes.items()]
    return weights + own


def saved(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by a block of DeepSeek-V3, and the mask of the tokens that were not chosen."""
    # A kernel with a mask stores its output with the tokens first.
    rows = deepseek.layer_saved(model, layer, replace(engine, attention_copy=False), router="sigmoid")
    if engine.scores:
        return rows
    place = next(index for index, row in enumerate(rows) if row.part == "core_attention")
    return [*rows[:place], _mask(model, layer, engine), *rows[place:]]


def _mask(model: ModelSpec, layer: int, engine: EngineTraits) -> SavedTensor:
    """Each layer's mask, in the format of its queries: a kernel with a mask keeps it (``aten`` ``attention.cpp``).

    The indexer's scores of each head are computed in fp32, with several sequences from its key copied for each query
    (``aten`` ``LinearAlgebra.cpp``, ``matmul`` of four-dimensional tensors), and then scaled. Its queries exist as
    projected, as rotated, and until the product in fp32; so do attention's, before and after concatenation.
    """
    heads, size = _size(model, "index_n_heads"), _size(model, "index_head_dim")
    copied = 0 if engine.one_sequence else size
    rotated = model.qk_rope_head_dim
    queries = heads * (2 * size + rotated) + model.num_attention_heads * (model.qk_nope_head_dim + 2 * rotated)
    product = 4 * (heads + copied) * engine.sequence_length + 4 * heads * size
    made = max(product, 4 * 2 * heads * engine.sequence_length) + engine.size * queries
    return SavedTensor(
        "mask of tokens that were not chosen",
        engine.size * engine.sequence_length,
        "token",
        "core_attention",
        module="attention",
        made=made if _has_indexer(model, layer) else 0,
    )


def transformers_config(model: ModelSpec) -> TransformersConfig | None:
    """The class of the model type; it masks tokens itself, and so picks attention by transformers' own names."""
    name = _CONFIGS.get(str(model.model_type))
    if name is None:
        return None
    found = deepseek.arguments(model)
    kinds = ["dense" if layer < model.first_dense_layers else "sparse" for layer in range(model.num_hidden_layers)]
    settings = {**found, "mlp_layer_types": kinds, **model.extra}
    return TransformersConfig(name=name, settings=settings, own_attention=True)


def not_computed(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of values that these classes do not support, and of axes that do not split the chosen tokens."""
    yield from deepseek.not_computed(spec)
    model = spec.model
    if not model.q_lora_rank:
        rule = "the indexer reads the latent of the queries, and this is its size"
        yield ConfigError("model.q_lora_rank", 0, rule, ["model.q_lora_rank=1536"])
    if model.attention == "flash":
        rule = "transformers masks what the indexer did not choose, and this kernel takes no mask"
        yield ConfigError("model.attention", "flash", rule, ["model.attention=sdpa"])
    for axis in _UNCUT:
        if (degree := getattr(spec.parallel, axis)) > 1:
            rule = f"this version splits a {model.model_type} only by FSDP, ZeRO and its experts"
            yield ConfigError(f"parallel.{axis}", degree, rule, [f"parallel.{axis}=1", "parallel=fsdp"])


def read_config(config: ConfigFile) -> JsonObject:
    """DeepSeek-V3.2 and GLM-5."""
    kind = config.model_type
    extra = config.extra(_keys(kind))
    dense = (
        config.size("first_k_dense_replace", 3, to="first_dense_layers") if config.get("first_k_dense_replace") else 0
    )
    model = deepseek.latent(config) | moe.balanced(config) | deepseek.first_dense(config, dense)
    return model | {"family": "deepseek_sparse", "model_type": kind, "attention": "sdpa", "extra": extra}
