"""Optimizers of the engines that run our own training loop: the library of each, and what it does not support.

torch has AdamW, SGD, Adafactor and Muon; torchao has 8-bit and 4-bit AdamW that support FSDP2's shards; bitsandbytes
has Lion and its own 8-bit AdamW, paged or not (``launcher/worker/model/optimizers.py``).
"""

from collections.abc import Iterator, Sequence

from launcher.base import package
from launcher.base.errors import ConfigError
from launcher.estimate.rank.formats import FEW_BITS
from launcher.job.versions import Borrowed
from launcher.spec import RunSpec, edit

OF_BITSANDBYTES = ("lion", "paged_adamw_8bit")
_IDLE = {
    "sgd": ("optimizer.beta2 optimizer.epsilon", "sgd has no second moment; it reads optimizer.beta1 as its momentum"),
    "lion": ("optimizer.epsilon", "lion steps by the sign of its update and divides by nothing"),
    "adafactor": (
        "optimizer.beta1 optimizer.beta2 optimizer.epsilon",
        "adafactor has no first moment, and the decay of its second moment follows the step number",
    ),
}
"""Keys that an optimizer does not read, and why."""

_SHARDED_BY = (
    *("cluster.nodes", "cluster.gpus_per_node"),
    *(f"parallel.{key}" for key in ("shard", "tensor", "sequence", "pipeline", "replicate", "expert")),
)
"""Settings that determine a rank's shard; without tensor parallel ranks nothing else has ``parallel.sequence``."""

BORROWED = (
    Borrowed(
        path="optimizer.name",
        asked=lambda spec: spec.optimizer.name in _of_bitsandbytes(spec),
        packages=("bitsandbytes",),
        extra=package.TRAINING,
        way_out="optimizer=adamw",
    ),
    Borrowed(
        path="optimizer.name",
        asked=lambda spec: spec.optimizer.name in {"adamw_8bit", "adamw_4bit"}.difference(_of_bitsandbytes(spec)),
        packages=("torchao",),
        extra=package.TRAINING,
        way_out="optimizer=adamw",
    ),
)


def _of_bitsandbytes(spec: RunSpec) -> Sequence[str]:
    """Names that bitsandbytes runs; on ZeRO's flat partitions also adamw_8bit, as torchao's needs 256-value blocks."""
    return (*OF_BITSANDBYTES, "adamw_8bit") if spec.backend.name == "deepspeed" else OF_BITSANDBYTES


def check(spec: RunSpec, names: Sequence[str]) -> Iterator[ConfigError]:
    """Errors for optimizers that the engine does not run, and for Muon with experts."""
    optimizer = spec.optimizer
    if optimizer.name not in names:
        rule = f"backend={spec.backend.name} runs {', '.join(names[:-1])} or {names[-1]} in this version"
        near = [name for name in names if "bit" in name and "bit" in optimizer.name] or names[:2]
        yield ConfigError("optimizer.name", optimizer.name, rule, [f"optimizer={other}" for other in near])
    if optimizer.name == "muon" and spec.model.num_experts:
        rule = "torch.optim.Muon steps only matrices, and transformers keeps all experts of a layer in one tensor"
        yield ConfigError("optimizer.name", "muon", rule, ["optimizer=adamw", "model.num_experts=0"])


def round_to_nearest(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for stochastic rounding on engines that do not use torchao's optimizers."""
    rule = "its optimizers round to nearest; torchao's, used with FSDP2 and DDP, can round stochastically"
    yield from edit.refused(spec, "optimizer.stochastic_rounding", rule, "parallel=fsdp")


def idle_keys(spec: RunSpec) -> Iterator[ConfigError]:
    """Warnings for settings that the optimizer does not read, and for a paged optimizer on the CPU."""
    yield from edit.refused(spec, *_IDLE.get(spec.optimizer.name, ("", "")), first=["optimizer=adamw"])
    if spec.optimizer.name == "paged_adamw_8bit" and spec.hardware.device == "cpu":
        rule = "on the CPU nothing is paged: bitsandbytes keeps the same 8-bit states in plain memory"
        yield ConfigError("optimizer.name", "paged_adamw_8bit", rule, ["optimizer=adamw_8bit", "hardware=h100_80g"])


def cut_unreadable(before: RunSpec, after: RunSpec) -> Iterator[ConfigError]:
    """Errors for resuming low-bit optimizer states on other shards, where blocks of values share a scale.

    torchao's 8-bit states follow the rows if each row is whole blocks of 256. All other states are saved as whole
    tensors by name, which any layout reads.
    """
    name, model = before.optimizer.name, before.model
    if name not in FEW_BITS or _cut(before) == _cut(after):
        return
    widths = (model.hidden_size, model.intermediate_size, model.query_size)
    if name == "adamw_8bit" and before.parallel.tensor == after.parallel.tensor and not any(w % 256 for w in widths):
        return
    was, now = before.shard_degree, after.shard_degree
    rule = f"the states of {name} share a scale per block of a rank's shard, and the shards would differ"
    rule += f" ({was} ranks, then {now})" if was != now else ""
    of_shard = ("zero.stage",) if before.parallel.shard != after.parallel.shard else ()  # DDP's is 0, FSDP2's is not.
    yield edit.changed_back(before, after, (*_SHARDED_BY, *of_shard), rule)


def _cut(spec: RunSpec) -> tuple[int, int]:
    return (spec.shard_degree if spec.parallel.shard else 1, spec.parallel.tensor)
