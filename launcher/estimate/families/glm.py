"""GLM-4.5: grouped-query attention that rotates part of each head, and DeepSeek-V3's experts."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.estimate.families import _hugging_face, llama, moe
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.family import ConfigFile, TransformersConfig
from launcher.estimate.rank.tensors import SavedTensor
from launcher.spec import ModelSpec, RunSpec

traits = replace(moe.traits, balances_experts=True, model_types=("glm4_moe",), narrow_routing=lambda model: False)

_LEGAL: Mapping[str, tuple[object, ...]] = {
    **_hugging_face.LEGAL,
    "attention_output_bias": (None, False),
    "mlp_bias": (False,),
    "kv_lora_rank": (0,),
    "sliding_window": (None,),
}
"""Values that Glm4MoeForCausalLM supports."""

embedding = llama.embedding
head = llama.head
after_blocks = llama.after_blocks
first_norm_backward = llama.first_norm_backward
saves_input = llama.saves_input
kind = moe.kind
block = moe.block
backward_extra = moe.backward_extra


def saved(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by two norms, attention and experts, or in the first layers the MLP."""
    return llama.attention(model, engine) + moe.saved_behind(model, layer, engine, router="sigmoid")


def transformers_config(model: ModelSpec) -> TransformersConfig | None:
    """GLM-4.5."""
    own = {"attention_bias": model.attention_bias, "use_qk_norm": model.qk_norm}
    settings = _hugging_face.common(model) | _hugging_face.balanced_experts(model) | own
    part = (model.rope_parameters or {}).get("partial_rotary_factor", 1.0)
    return TransformersConfig(name="Glm4MoeConfig", settings=settings | {"partial_rotary_factor": part})


def not_computed(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of values that Glm4MoeForCausalLM does not support."""
    yield from _hugging_face.other_values(spec, _LEGAL)
    yield from _hugging_face.other_router(spec)


def read_config(config: ConfigFile) -> JsonObject:
    """GLM-4.5 and its relatives."""
    model = llama.read_config(config) | moe.balanced(config)
    return model | {"family": "glm", "qk_norm": config.flag("use_qk_norm", False, to="qk_norm")}
