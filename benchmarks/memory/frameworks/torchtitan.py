"""torchtitan as a backend that is only checked: FSDP2 with tensor parallelism, eager or compiled block by block.

Its rows are ``max_memory_reserved``. The allocator keeps the memory of each stream apart: gathered parameters arrive in
one stream's and sharded gradients are made in another's, and neither gives way to the logits (``reserved``). A row's
commit says which torch it ran on: torch 2.4 (2024-06) copied gradients for their reduction in the stream that reduces
them, later ones in the stream that computes; from 2.8 on the root unit is given back after its forward pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from benchmarks.memory.frameworks.expressed import Expressed, LeftOutError, Line
from launcher.backends.fsdp import engine as fsdp_engine
from launcher.backends.fsdp import overheads
from launcher.backends.fsdp.traits import dtypes
from launcher.base import registry
from launcher.estimate.memory.estimate import Backend, RankTerms, rank_terms
from launcher.estimate.memory.moments import LOSS, MOMENTS, UNTIL_FIRST_GRADIENTS, Moment
from launcher.estimate.memory.terms import OUTSIDE_PILES, MemoryTerm, term
from launcher.estimate.rank.engine import EngineTraits, LogitsBytes
from launcher.estimate.rank.formats import Dtypes
from launcher.estimate.rank.model import RankModel
from launcher.spec import RunSpec

_COMPILED = LogitsBytes(output=2, loss=2, backward=6, source="torchtitan components/loss.py, compiled cross entropy")
"""The graph of its backward pass holds 4; 6 is fitted to the four rows of it, of three models and batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchtitan(Backend):
    """One way to run torchtitan.

    Attributes:
        since: Year and month of the commit, as ``2024-06``, or the year alone, as far as they are known.
        compiled: Whether blocks are compiled: the output of a block's last product is not saved, which eager selective
            checkpointing holds though nothing in the backward pass reads it.
        compiled_loss: Whether the cross entropy is compiled: no fp32 copy of the logits is left of it.
        repeats_keys: Whether attention copies keys and values to every query head.
        flat: Whether FSDP1 shards it, as before May 2024.
    """

    framework: ClassVar[str] = "Torchtitan"

    since: str = ""
    compiled: bool = False
    compiled_loss: bool
    repeats_keys: bool
    flat: bool = False

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
        """FSDP2's buffers, and logits that a commit names for longer."""
        yield from overheads(rank)
        if self.since < _LOGITS_FREED:
            what, source = "logits of the model, in fp32", "torchtitan train.py of June 2024, pred"
            v, tok, t = rank.vocabulary, rank.tokens, rank.view.tensor
            yield term("logits", ("loss_backward",), what, "4 * V * tok * t", source, V=v, tok=tok, t=t)


def reserved(backend: Torchtitan, spec: RunSpec) -> int:
    """Bytes that the allocator reserves: the peak of the stream that computes, and all that others ever held.

    The others: gathered parameters before they are copied out, of the root unit and a block (``_fsdp_collectives.py``,
    ``all_gather_copy_in_stream``); sharded gradients, made by the reduction (``reduce_scatter_stream``), which the
    loss of the next step finds freed and cannot use. FSDP1 has no copy of what it gathers, two blocks ahead, and casts
    gradients in the stream that reduces them (``_runtime_utils.py``, ``_unshard``, ``_post_backward_hook``).
    """
    family = registry.load("families", spec.model.family)
    strategies = [registry.load("strategies", name) for name in registry.names("strategies")]
    rank = rank_terms(spec, family=family, strategies=strategies, backend=backend)[0]
    model, sizes = rank.model, {moment: _computing(backend, rank, moment) for moment in MOMENTS}
    peak = max(sizes, key=lambda moment: sizes[moment])
    z = model.engine.size
    blocks = (2 if backend.flat else 1) * model.compute_parameters(model.largest_block)
    gathered = z * (model.compute_parameters(model.root) + blocks)
    gradients = model.dtypes.size("accumulate") * model.elements.gradients
    copied = 4 * model.root.whole if backend.flat or backend.since < _COPIED_APART else 0
    unused = _unused(model) if peak in LOSS and not backend.compiled_loss else 0
    return round(sizes[peak] + gathered + gradients + copied + unused)


def _computing(backend: Torchtitan, rank: RankTerms, moment: Moment) -> int:
    """Bytes of a moment in the stream that computes: all but sharded gradients, and what a commit does not hold."""
    apart, model = {*OUTSIDE_PILES, "gradients", *(["gather_buffers"] if backend.flat else [])}, rank.model
    size = sum(each.bytes for each in rank.at(moment) if each.pile not in apart)
    if backend.compiled and moment in UNTIL_FIRST_GRADIENTS:
        size -= _unsaved(model)
    if backend.since >= _ROOT_RESHARDED and moment in LOSS:
        size -= round(model.engine.size * model.compute_parameters(model.root))
    return size


def _unsaved(rank: RankModel) -> int:
    """Less than eager selective checkpointing: the outputs of the blocks' last products, ``2 h`` a token and block.

    Eager the outputs of every other product are saved, the seventh's too; a compiled graph saves what backward reads
    (torchtitan ``parallelize.py``, ``_get_custom_policy``).
    """
    if rank.spec.checkpointing.mode != "selective":
        return 0
    return round(rank.layers * 2 * rank.spec.model.hidden_size * rank.view.residual * rank.tokens)


def _unused(rank: RankModel) -> int:
    """The place of the 16-bit logits between tensors in fp32: freed by backward, and too small for any of those.

    In order: 16-bit logits, fp32 ones, log-softmax (on shards one more before it); the first two are freed and their
    place takes the first gradient but not the second beside it.
    """
    entries = rank.vocabulary * (rank.view.tensor if rank.engine.vocabulary_parallel else 1)
    return round(rank.engine.size * entries * rank.tokens)


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
    since, compiled = _since(line), line["compile"] == "true"
    compiled_loss = (compiled and since >= _LOSS_COMPILED) or "compiled/chunked cross-entropy" in line["notes"]
    flat = line["zero_stage"] in ("fsdp", "fsdp1", "3")
    backend = Torchtitan(since=since, compiled=compiled, compiled_loss=compiled_loss, repeats_keys=True, flat=flat)
    return Expressed(backend=backend, settings=settings, reserved=partial(reserved, backend))


def _since(line: Line) -> str:
    """The commit's month, or only its year; torchtitan has Qwen3 since July 2025."""
    stated = re.search(r"\((20\d\d(?:-\d\d)?)", line["framework_version"])
    known = stated.group(1) if stated is not None else "2025"
    return max(known, "2025-07") if "Qwen3" in line["model_name"] else known


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


_COPIED_APART = "2024-07"
"""torch 2.4 ``_fsdp_collectives.py``, ``foreach_reduce``: the fp32 copy is made in ``reduce_scatter_stream``."""

_LOGITS_FREED = "2024-07"
"""Before, ``train.py`` names the logits, which the model casts to fp32, until the backward pass is through."""

_LOSS_COMPILED = "2025-03"
"""torchtitan commit e23bb707: with ``compile`` the loss is compiled too."""

_ROOT_RESHARDED = "2025-07"
"""torch 2.8 reshards a root that is told to (``fully_shard(model, reshard_after_forward=True)``); 2.7 never does."""

_CHECKPOINTING = {"none": "none", "full": "full", "op": "selective"}
