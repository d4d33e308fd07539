"""Which checkpoints DeepSpeed 0.19.8 can resume, given the layouts of the saving and the loading run.

Its universal format has different files for ZeRO 3 than for 1 and 2, none for ZeRO 0, and holds only Adam's states.
States swapped to NVMe are in files per sub-group of a rank (``offloaded_tensors``), which nothing converts. Without
ZeRO there is no conversion, and ZeRO 3's takes parts of a tensor for whole ones (``ds_to_universal``: "Rank 0 supplied
a shard of 64 elements, but the map describes 0"). A pipeline stage is one layer to it, and its conversion moves whole
layers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.spec import RunSpec, edit

_KEYS = {
    "precision": ("precision.compute",),
    "stage": ("zero.stage",),
    "pipeline": ("parallel.pipeline",),
    "tensor": ("parallel.tensor",),
    "lora_plus": ("adapter.lora_plus",),
    "nvme": ("zero.offload_optimizer", "zero.offload_parameters"),
    "sub_group_size": ("zero.sub_group_size",),
    "ranks": ("cluster.nodes", "cluster.gpus_per_node"),
}
"""The settings behind each fact of a layout that a checkpoint may be refused for."""

type Reason = tuple[tuple[str, ...], str]  # The facts that must stay as they were, and why.

_PARTS = ("optimizer", "parameters")
_OTHERWISE = "or export there (save.export=safetensors) and start here with model.weights"


def facts(spec: RunSpec) -> JsonObject:
    """The layout of a run, as stored in ``deepspeed.json`` of its checkpoints."""
    return {
        "stage": spec.zero.stage,
        "ranks": spec.gpus,
        "tensor": spec.parallel.tensor,
        "pipeline": spec.parallel.pipeline,
        "precision": spec.precision.compute,
        "nvme": " and ".join(part for part in _PARTS if getattr(spec.zero, f"offload_{part}") == "nvme") or False,
        "sub_group_size": spec.zero.sub_group_size,
        "adapter": spec.adapter.name,
        "lora_plus": spec.adapter.lora_plus is not None,
        "optimizer": spec.optimizer.name,
    }


def unreadable(before: RunSpec, after: RunSpec) -> Iterator[ConfigError]:
    """The error if a run cannot resume from another's checkpoint, with the settings that must stay."""
    if (reason := reason_against(facts(before), facts(after))) is not None:
        paths = [path for fact in reason[0] for path in _KEYS[fact]]
        yield edit.changed_back(before, after, paths, f"the checkpoint {reason[1]}")


def layout_differs(there: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """True if the resuming ranks hold other parts than the saving ones; early checkpoints had only data ranks."""
    return any(there.get(key, 1) != here[key] for key in ("stage", "ranks", "tensor", "pipeline"))


def reason_against(there: Mapping[str, Any], here: Mapping[str, Any]) -> Reason | None:
    """Why a checkpoint cannot be converted to a run's layout, with the way out; None if it can."""
    if there["precision"] != here["precision"]:
        return ("precision",), (
            f"was trained in {there['precision']} and this run computes in {here['precision']}: "
            f"set precision={there['precision']}, {_OTHERWISE}"
        )
    if there["nvme"] or here["nvme"]:
        return _other_files(there, here)
    if there["stage"] != here["stage"] and {there["stage"], here["stage"]} != {1, 2}:
        return ("stage",), (
            f"was written with ZeRO {there['stage']} and this run has ZeRO {here['stage']}: "
            f"DeepSpeed converts only between ZeRO 1 and 2; set zero={there['stage']}, {_OTHERWISE}"
        )
    if there.get("lora_plus", False) != here.get("lora_plus", False):
        one, other = ("with", "without") if there.get("lora_plus") else ("without", "with")
        text = f"has parameters grouped {one} LoRA+, and this run groups them {other}: keep it, {_OTHERWISE}"
        return ("lora_plus",), text
    return _other_stages(there, here) or _other_parts(there, here) or _other_states(there, here)


def _other_files(there: Mapping[str, Any], here: Mapping[str, Any]) -> Reason | None:
    """Why swapped files cannot be read: only the same ranks with the same sub-groups read them."""
    before, now = (
        f"offload of {facts['nvme']} to NVMe" if facts["nvme"] else "no offload to NVMe" for facts in (there, here)
    )
    if there["nvme"] != here["nvme"]:
        return ("nvme",), (
            f"was written with {before} and this run has {now}, which DeepSpeed does not convert: keep it, {_OTHERWISE}"
        )
    if here["sub_group_size"] == (size := there["sub_group_size"]) and not layout_differs(there, here):
        return None
    return ("stage", "ranks", "tensor", "pipeline", "sub_group_size"), (
        f"was written by {there['ranks']} ranks with zero.sub_group_size={size} and {before}, whose files "
        f"no others read: run on {there['ranks']} ranks with zero.sub_group_size={size}, {_OTHERWISE}"
    )


def _other_stages(there: Mapping[str, Any], here: Mapping[str, Any]) -> Reason | None:
    before, now = there.get("pipeline", 1), here["pipeline"]
    if before == now and (now == 1 or there["ranks"] == here["ranks"]):
        return None
    return ("pipeline", "ranks"), (
        f"was written by {there['ranks']} ranks with parallel.pipeline={before}, and this run has "
        f"{here['ranks']} with {now}: DeepSpeed cannot split the stages again; run on {there['ranks']} ranks with "
        f"parallel.pipeline={before}, {_OTHERWISE}"
    )


def _other_parts(there: Mapping[str, Any], here: Mapping[str, Any]) -> Reason | None:
    before, now = there.get("tensor", 1), here["tensor"]
    moved = before != now or (now > 1 and here["stage"] == 3 and there["ranks"] != here["ranks"])
    if here["stage"] not in (0, 3) or not moved:
        return None
    return ("tensor", "ranks"), (
        f"was written by {there['ranks']} ranks with ZeRO {here['stage']} and parallel.tensor={before}, "
        f"and this run has {here['ranks']} and parallel.tensor={now}: DeepSpeed changes tensor parallel parts "
        f"only with ZeRO 1 and 2; run on {there['ranks']} ranks with parallel.tensor={before}, {_OTHERWISE}"
    )


def _other_states(there: Mapping[str, Any], here: Mapping[str, Any]) -> Reason | None:
    converted = here["stage"] > 0 and layout_differs(there, here)
    if not converted or (here["optimizer"] == "adamw" and here["adapter"] == "none"):
        return None
    reason = "an adapter" if here["adapter"] != "none" else here["optimizer"]
    return ("stage", "ranks", "tensor"), (
        f"was written by {there['ranks']} ranks with ZeRO {there['stage']}, and DeepSpeed cannot "
        f"convert the states of {reason}: run on {there['ranks']} ranks with zero={there['stage']}, {_OTHERWISE}"
    )
