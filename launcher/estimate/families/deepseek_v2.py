"""DeepSeek-V2: latent attention, and experts scored by a softmax over all of them (arXiv:2405.04434)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.estimate.families import deepseek, moe
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.family import ConfigFile, TransformersConfig
from launcher.estimate.rank.tensors import SavedTensor
from launcher.spec import ModelSpec, RunSpec

traits = replace(deepseek.traits, balances_experts=False, model_types=("deepseek_v2",))

_LEGAL: Mapping[str, tuple[object, ...]] = {**deepseek.LEGAL, "mlp_bias": (False, True), "norm_topk_prob": (False,)}
"""Values that DeepseekV2ForCausalLM supports."""

embedding = deepseek.embedding
head = deepseek.head
after_blocks = deepseek.after_blocks
first_norm_backward = deepseek.first_norm_backward
saves_input = deepseek.saves_input
kind = deepseek.kind
block = deepseek.block
backward_extra = deepseek.backward_extra


def saved(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by two norms, latent attention and experts, or in the first layers the MLP."""
    return deepseek.layer_saved(model, layer, engine, router="softmax")


def transformers_config(model: ModelSpec) -> TransformersConfig | None:
    """DeepSeek-V2, whose groups are those of the devices that hold the experts (section 2.2.2)."""
    found = deepseek.arguments(model)
    method = "group_limited_greedy" if model.n_group > 1 else "greedy"
    return TransformersConfig(name="DeepseekV2Config", settings={**found, "topk_method": method})


def not_computed(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of values that DeepseekV2ForCausalLM does not support."""
    yield from deepseek.not_computed(spec, _LEGAL)


def read_config(config: ConfigFile) -> JsonObject:
    """DeepSeek-V2, which chooses from groups with only one of its two methods."""
    model = deepseek.latent(config) | moe.balanced(config)
    method = config.get("topk_method", "greedy")
    config.say("topk_method", "n_group")
    if config.get("scoring_func") == "softmax":
        config.default("scoring_func")
    if method not in ("greedy", "group_limited_greedy"):
        config.error(
            "topk_method", "is greedy or group_limited_greedy in transformers' class", "script=path/to/train.py"
        )
    if method == "greedy":
        model |= {"n_group": 1, "topk_group": 1}
    if model["norm_topk_prob"]:
        config.leave("norm_topk_prob", "no effect: transformers' class does not normalise the weights to add up to 1")
    if config.get("num_experts_per_tok") is None:
        config.leave("num_experts_per_tok", "the class cannot run with null: here each token is sent to one expert")
    return model | {"family": "deepseek_v2", "norm_topk_prob": False}
