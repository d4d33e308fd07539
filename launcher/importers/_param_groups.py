"""Parameter groups of torchtitan's optimizers that step as one optimizer here does."""

import re
from collections.abc import Mapping

from launcher.base.files import JsonObject


def as_one(optimizer: JsonObject) -> JsonObject:
    """The arguments of an optimizer whose groups step as one here does, as those of 0.2; any other as it is.

    One rule steps all parameters here, or Muon the matrices of the blocks and AdamW the rest; vectors do not decay.
    """
    groups, own = _groups(optimizer), {key: value for key, value in optimizer.items() if key != "param_groups"}
    matrices, experts, tables, vectors = (_rule_of(groups, names) for names in _PARAMETERS)
    if matrices is None or tables is None or vectors is None or tables["name"] == "DistMuon":
        return optimizer
    decay = tables["weight_decay"]
    if {**vectors, "weight_decay": vectors["weight_decay"] or decay} != tables or (decay and tables["name"] == "Adam"):
        return optimizer
    if tables == matrices == experts:
        return {**own, **tables}
    muon = {"name": "DistMuon", "weight_decay": decay, "momentum": tables["beta1"], "adjust_lr_fn": "match_rms_adamw"}
    if matrices != {**muon, "lr": matrices["lr"]} or experts not in (matrices, tables):
        return optimizer
    return {**own, **tables, "name": "muon", "lr": matrices["lr"], "adamw_lr": tables["lr"]}


def _groups(optimizer: JsonObject) -> list[tuple[str, JsonObject]]:
    """The pattern and the rule of every group; none where one of them is not known."""
    listed, found = optimizer.get("param_groups"), []
    for each in listed if isinstance(listed, list) and all(isinstance(each, dict) for each in listed) else []:
        name, pattern, said = (each.get(key) for key in ("optimizer_name", "pattern", "optimizer_kwargs"))
        if (
            str(name) not in _TORCH
            or not isinstance(pattern, str)
            or not isinstance(said, dict)
            or _SLOW.search(pattern)
        ):
            return []
        rule = {"name": name, **_TORCH[name], **said}
        if isinstance(rule.get("betas"), list) and len(rule["betas"]) == 2:
            rule["beta1"], rule["beta2"] = rule.pop("betas")
        if name == "DistMuon":
            rule.pop("foreach", None)  # One kernel for several matrices, with the same maths.
        found.append((pattern, rule))
    return found


def _rule_of(groups: list[tuple[str, JsonObject]], names: str) -> JsonObject | None:
    """The arguments that all of these parameters get, each by the first pattern in its name; None where they differ."""
    try:
        found = [next(rule for pattern, rule in groups if re.search(pattern, name)) for name in names.split()]
    except (StopIteration, re.error):
        return None
    return found[0] if all(each == found[0] for each in found) else None


_ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
_TORCH: Mapping[str, JsonObject] = {
    "Adam": {**_ADAM, "weight_decay": 0.0},
    "AdamW": {**_ADAM, "weight_decay": 0.01},
    "DistMuon": {"lr": 1e-3, "weight_decay": 0.1, "momentum": 0.95, "adjust_lr_fn": None},
}
"""Arguments that a group has where it gives none (``torch.optim``; ``distributed/flex_shard/dist_muon.py``)."""

_SLOW = re.compile(r"\)[*+{]|(?:[*+{].*){5}|.{500}")
"""Patterns that may take long to search a name for: repeated groups, many repetitions, and long ones."""

_PARAMETERS = tuple(names.replace("@", "layers.1") for names in (
    "@.attention.qkv_linear.wq.weight @.attention.qkv_linear.wk.weight @.attention.qkv_linear.wv.weight "
    "@.attention.qkv_linear.wqkv.weight @.attention.wo.weight "
    "@.feed_forward.w1.weight @.feed_forward.w2.weight @.feed_forward.w3.weight",
    "@.moe.router.gate.weight @.moe.routed_experts.inner_experts.w1_EFD @.moe.shared_experts.w1.weight",
    "tok_embeddings.weight lm_head.weight",
    "@.attention_norm.weight @.ffn_norm.weight @.attention.q_norm.weight norm.weight",
))  # fmt: skip
"""Names of a dense block's matrices, of those with experts, of both tables, and of vectors (models/common/)."""
