"""torchtitan as a backend that is only checked: FSDP2 with tensor parallelism, eager or compiled block by block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from benchmarks.memory.frameworks.expressed import Expressed, LeftOutError, Line
from launcher.backends.fsdp import engine as fsdp_engine
from launcher.backends.fsdp import overheads
from launcher.backends.fsdp.traits import dtypes
from launcher.estimate.memory.estimate import Backend
from launcher.estimate.memory.terms import MemoryTerm
from launcher.estimate.rank.engine import EngineTraits, LogitsBytes
from launcher.estimate.rank.formats import Dtypes
from launcher.estimate.rank.model import RankModel
from launcher.spec import RunSpec

_COMPILED = LogitsBytes(output=2, loss=2, backward=4, source="torchtitan components/loss.py, compiled cross entropy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchtitan(Backend):
    """One way to run torchtitan.

    Attributes:
        compiled_loss: Whether the cross entropy is compiled: no fp32 copy of the logits is left of it.
        repeats_keys: Whether attention copies keys and values to every query head.
    """

    framework: ClassVar[str] = "Torchtitan"

    compiled_loss: bool
    repeats_keys: bool

    def runs_on(self, spec: RunSpec) -> str:
        """FSDP2, which a worker of ours runs on as well: these rows serve its error band."""
        return "FSDP2"

    def dtypes(self, spec: RunSpec) -> Dtypes:
        """As our own FSDP2: fp32 shards, bf16 compute, fp32 reduction."""
        return dtypes(spec)

    def engine(self, spec: RunSpec) -> EngineTraits:
        """Modules much like those of ``transformers``; the loss outside of the model, on shards of the vocabulary."""
        return replace(
            fsdp_engine(spec),
            key_heads=spec.model.num_attention_heads if self.repeats_keys else None,
            vocabulary_parallel=spec.parallel.tensor > 1,
            logits=_COMPILED if self.compiled_loss else None,
        )

    def overheads(self, rank: RankModel) -> Iterator[MemoryTerm]:
        """FSDP2's buffers."""
        yield from overheads(rank)


def express(line: Line) -> Expressed:
    """FSDP2 with tensor and context parallelism; the launch script's allocator has expandable segments."""
    _expressible(line)
    settings: dict[str, object] = {
        "parallel.shard": True,
        "parallel.tensor": line["tp"],
        "parallel.sequence": line["sp"],
        "parallel.context": line["cp"],
        "checkpointing": _CHECKPOINTING[line["act_ckpt"]],
        "train.allocator": "expandable",
    }
    if "never reshard" in line["notes"]:
        settings["backend.reshard_after_forward"] = False
    since = re.search(r"\((20\d\d-\d\d)", line["framework_version"])
    compiled = line["compile"] == "true" and since is not None and since.group(1) >= _LOSS_COMPILED
    compiled |= "compiled/chunked cross-entropy" in line["notes"]
    return Expressed(backend=Torchtitan(compiled_loss=compiled, repeats_keys=True), settings=settings)


def _expressible(line: Line) -> None:
    """Refuse what the columns and notes leave open, and parts of torchtitan that are not modelled."""
    if line["compile"] not in ("true", "false", "loss only") or "graph_trainer" in line["notes"]:
        raise LeftOutError("a compiler that chooses what is saved")
    if "MoE" in line["notes"]:
        raise LeftOutError("torchtitan's kernels for experts")
    if "not all restated" in line["notes"] or "additionally saves" in line["notes"]:
        raise LeftOutError("settings that differ from the defaults and are not stated")
    if line["pp"] != "1":
        raise LeftOutError("torchtitan's pipelines")
    if line["act_ckpt"] not in _CHECKPOINTING:
        raise LeftOutError("it is not stated what is recomputed")
    if line["compile"] == "true" and re.search(r"20\d\d", line["framework_version"]) is None:
        raise LeftOutError("torchtitan's version, on which its loss depends")


_LOSS_COMPILED = "2025-03"
"""torchtitan commit e23bb707: with ``compile`` the loss is compiled too."""

_CHECKPOINTING = {"none": "none", "full": "full", "op": "selective"}
