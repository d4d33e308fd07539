"""Every argument of Megatron-LM's own parser, by what it does to memory (megatron-core 0.19.2).

An argument has a launcher setting that the estimate reads (``SETTINGS``); or is counted from ``backend.extra`` itself
(``implementation.COUNTED``); or, in ``options.yaml``, holds no uncounted memory or is refused, by reason. A test reads
Megatron's own parser and looks up the class of each argument; one without a class is refused, or named in a warning
where another parser reads it.
"""

from collections.abc import Mapping
from pathlib import Path

from launcher.base import files

VERSION = "0.19.2"  # The release whose arguments are listed here.
_TABLES: Mapping[str, Mapping[str, str]] = files.load_own(Path(__file__).with_suffix(".yaml"))
SETTINGS = {name: setting for setting, names in _TABLES["settings"].items() for name in names.split()}
"""Arguments that a setting gives, which the memory estimate and the record of the run read as well."""

NO_MEMORY, REFUSED = _TABLES["no_memory"], _TABLES["refused"]
"""Other arguments: names separated by blanks, by the reason of their class."""

INSTEAD: Mapping[str, str] = {
    "distribute-saved-activations": "parallel.sequence=true",
    "group-query-attention": "model.num_key_value_heads=4",
    "hybrid-context-parallel": "parallel.context=2",
    "optimizer-offload-fraction": "zero.offload_optimizer=cpu",
    "recompute-activations": "checkpointing=selective",
    "sft": "data=chat",
    "use-flash-attn": "model.attention=flash",
    "use-precision-aware-optimizer": "precision.optimizer_states=bf16",
    "use-rotary-position-embeddings": "model.position_embedding=rope",
    "use-torch-fsdp2": "parallel=fsdp",
}
"""The closest override for a refused argument."""

LET_THROUGH: Mapping[str, tuple[object, ...]] = {
    "ckpt-format": ("torch_dist", "fsdp_dtensor"),
    "moe-token-dispatcher-type": ("allgather", "alltoall", "flex"),
    "muon-scalar-optimizer": ("adam",),
    "muon-tp-mode": ("blockwise",),
    "non-persistent-ckpt-type": ("global",),
    "optimizer-offload-fraction": (1, 1.0),
    "outer-dp-sharding-strategy": ("no_shard",),
    "softmax-type": ("vanilla",),
    "vocab-extra-ids": (0,),
}
"""Values of refused arguments that change nothing."""


_CLASSES = {
    name: (reason, table is REFUSED)
    for table in (NO_MEMORY, REFUSED)
    for reason, row in table.items()
    for name in row.split()
}


def line(name: str) -> tuple[str, bool] | None:
    """The reason of an argument's class, and True if it is refused; None for an argument without a class."""
    return _CLASSES.get(name)


def known() -> list[str]:
    """The arguments that are not refused, and those that a setting gives."""
    return [*SETTINGS, *(name for name, (_, is_refused) in _CLASSES.items() if not is_refused)]
