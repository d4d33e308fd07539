"""Tensor parallelism by DeepSpeed's AutoTP: its plan, spelt out, and the models that it cannot split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.backends import _models
from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.spec import RunSpec

_COLUMNS = r".*\.(self_attn\.[qkv]_proj|mlp\.(gate|up)_proj)\.weight$"
_ROWS = r".*\.(self_attn\.o_proj|mlp\.down_proj)\.weight$"
_HEAD = r".*lm_head\.weight$"
_HEAD_NORMS = r".*\.self_attn\.[qk]_norm\.weight$"


def block(spec: RunSpec) -> dict[str, Any]:
    """The block ``tensor_parallel``: the cut that ``transformers`` itself plans for Llama, Qwen2 and Qwen3.

    The token embedding stays whole on every rank, and so does a tied output projection. One of its own is split by
    vocabulary and its logits are gathered. Norms of heads are whole, but each rank sees its own heads alone, so their
    gradients are summed (``base_model_tp_plan`` and ``_tp_plan`` of transformers 5.23).
    """
    layers: list[dict[str, Any]] = [
        {"patterns": [_COLUMNS], "partition_type": "column"},
        {"patterns": [_ROWS], "partition_type": "row"},
    ]
    if not spec.model.tie_word_embeddings:
        layers.append({"patterns": [_HEAD], "partition_type": "column", "gather_output": True})
    if spec.model.qk_norm:
        layers.append({"patterns": [_HEAD_NORMS], "partition_type": "skip", "grad_allreduce": True})
    return {
        "autotp_size": spec.parallel.tensor,
        "tp_overlap_comm": False,
        "partition_config": {"use_default_specs": False, "layer_specs": layers},
    }


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Models and settings that AutoTP of DeepSpeed 0.19.8 does not split, or would split wrongly."""
    degree, model, path = spec.parallel.tensor, spec.model, "parallel.tensor"
    if degree == 1:
        return
    back = [f"{path}=1", "parallel=tp"]
    uncut = families.of(model).traits.not_linear
    if uncut is not None:
        rule = f"AutoTP cuts linear layers, and of the family {model.family} it would have to cut {uncut}"
        yield ConfigError(path, degree, rule, back)
    elif model.key_value_heads % degree:
        rule = f"must divide the {model.key_value_heads} key and value heads: AutoTP gives further ranks no attention"
        yield ConfigError(path, degree, rule, _models.tensor_degrees(spec))
    if spec.parallel.sequence:
        rule = "AutoTP keeps norms and residuals whole on every tensor parallel rank"
        yield ConfigError("parallel.sequence", True, rule, ["parallel.sequence=false", "parallel=tp"])
    if spec.adapter.name == "lora":
        rule = "an adapter's matrices lie inside the linear layers that AutoTP replaces"
        yield ConfigError("adapter.name", "lora", rule, ["adapter=none", "parallel.tensor=1"])
    if spec.zero.hpz > 1:
        rule = "DeepSpeed makes the groups of the second partition of neighbours, and these share tensors"
        yield ConfigError("zero.hpz", spec.zero.hpz, rule, ["zero.hpz=1", "parallel.tensor=1"])
