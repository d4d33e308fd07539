"""The checkpoints that DeepSpeed 0.19.8 can go on from, by the layouts of the run that saved and of the run that loads.

Its universal format has other files for ZeRO 3 than for 1 and 2, none for ZeRO 0, and holds Adam's states alone.
Without ZeRO there is no conversion, and that of ZeRO 3 takes parts of a tensor for wholes (``ds_to_universal``: "Rank 0
supplied a shard of 64 elements, but the map describes 0"). A pipeline stage is one layer to it, and its conversion
moves whole layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.spec import RunSpec, edit

_KEYS = {
    "precision": "precision.compute",
    "stage": "zero.stage",
    "pipeline": "parallel.pipeline",
    "tensor": "parallel.tensor",
    "optimizer": "optimizer.name",
    "adapter": "adapter.name",
    "nvme": "zero.offload_optimizer",
    "ranks": "cluster.gpus_per_node",
}
"""The setting behind each fact of a layout."""

_OTHERWISE = "or export there (save.export=safetensors) and start here with model.weights"


def facts(spec: RunSpec) -> JsonObject:
    """The layout of a run, as ``deepspeed.json`` in its checkpoints holds it."""
    return {
        "stage": spec.zero.stage,
        "ranks": spec.gpus,
        "tensor": spec.parallel.tensor,
        "pipeline": spec.parallel.pipeline,
        "precision": spec.precision.compute,
        "nvme": "nvme" in (spec.zero.offload_optimizer, spec.zero.offload_parameters),
        "adapter": spec.adapter.name,
        "optimizer": spec.optimizer.name,
    }


def unreadable(before: RunSpec, after: RunSpec) -> Iterator[ConfigError]:
    """The reason why a run cannot go on from another's checkpoint, and the setting that would have to stay.

    A checkpoint of a run that used NVMe has no such setting: the reason says what else there is.
    """
    there, here = facts(before), facts(after)
    reason = reason_against(there, here)
    if reason is None:
        return
    nvme = there["precision"] == here["precision"] and (there["nvme"] or here["nvme"])
    key = "nvme" if nvme else next(key for key in _KEYS if there[key] != here[key])
    path = _KEYS[key]
    if nvme and "nvme" not in (before.zero.offload_optimizer, after.zero.offload_optimizer):
        path = "zero.offload_parameters"
    ways = [] if nvme and there["nvme"] else [edit.override(path, edit.value_at(before, path))]
    yield ConfigError(path, edit.value_at(after, path), f"the checkpoint {reason}", ways)


def layout_differs(there: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """True if the ranks that resume hold other parts than those that saved; early checkpoints knew data ranks alone."""
    return any(there.get(key, 1) != here[key] for key in ("stage", "ranks", "tensor", "pipeline"))


def reason_against(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Why a checkpoint cannot be converted to a run's layout, with the way out; None where it can."""
    if there["precision"] != here["precision"]:
        return (
            f"was trained in {there['precision']} and this run computes in {here['precision']}: "
            f"set precision={there['precision']}, {_OTHERWISE}"
        )
    if there["nvme"] or here["nvme"]:
        return (
            "cannot be resumed: DeepSpeed 0.19.8 restores neither weights nor optimizer states where "
            f"something is offloaded to NVMe; train without NVMe, {_OTHERWISE}"
        )
    if there["stage"] != here["stage"] and {there["stage"], here["stage"]} != {1, 2}:
        return (
            f"was written with ZeRO {there['stage']} and this run has ZeRO {here['stage']}: "
            f"DeepSpeed converts between ZeRO 1 and 2 alone; set zero={there['stage']}, {_OTHERWISE}"
        )
    return _other_stages(there, here) or _other_parts(there, here) or _other_states(there, here)


def _other_stages(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    before, now = there.get("pipeline", 1), here["pipeline"]
    if before == now and (now == 1 or there["ranks"] == here["ranks"]):
        return None
    return (
        f"was written by {there['ranks']} ranks with parallel.pipeline={before}, and this run has "
        f"{here['ranks']} with {now}: DeepSpeed cannot cut the stages anew; run on {there['ranks']} ranks with "
        f"parallel.pipeline={before}, {_OTHERWISE}"
    )


def _other_parts(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    before, now = there.get("tensor", 1), here["tensor"]
    moved = before != now or (now > 1 and here["stage"] == 3 and there["ranks"] != here["ranks"])
    if here["stage"] not in (0, 3) or not moved:
        return None
    return (
        f"was written by {there['ranks']} ranks with ZeRO {here['stage']} and parallel.tensor={before}, "
        f"and this run has {here['ranks']} and parallel.tensor={now}: DeepSpeed changes tensor parallel parts "
        f"with ZeRO 1 and 2 alone; run on {there['ranks']} ranks with parallel.tensor={before}, {_OTHERWISE}"
    )


def _other_states(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    converted = here["stage"] > 0 and layout_differs(there, here)
    if not converted or (here["optimizer"] == "adamw" and here["adapter"] == "none"):
        return None
    reason = "an adapter" if here["adapter"] != "none" else here["optimizer"]
    return (
        f"was written by {there['ranks']} ranks with ZeRO {there['stage']}, and DeepSpeed cannot "
        f"convert the states of {reason}: run on {there['ranks']} ranks with zero={there['stage']}, {_OTHERWISE}"
    )
