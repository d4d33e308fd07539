"""LitGPT on one GPU or with FSDP1, in bf16 throughout, as a backend that is only checked: whole, LoRA and QLoRA."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from benchmarks.memory.frameworks import hf_trainer
from benchmarks.memory.frameworks.expressed import Expressed, LeftOutError, Line
from launcher.estimate.memory.estimate import Backend
from launcher.estimate.memory.moments import ALWAYS, LOSS, PASSES, Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.engine import EngineTraits, LogitsBytes
from launcher.estimate.rank.formats import Dtypes
from launcher.estimate.rank.model import RankModel
from launcher.spec import RunSpec

_BACKWARD: Moments = frozenset(("block_backward", "next_block_backward", "second_layer_backward"))
_LOSS = "litgpt/utils.py, chunked_cross_entropy, on logits that Fabric's precision plugin casts to fp32"

WHOLE = LogitsBytes(output=6, loss=12, backward=16, source=_LOSS)
"""fp32 logits, their copy without the last token and the log-softmax; in backward gradients of chunks and of all."""

CHUNKED = LogitsBytes(output=6, loss=8, backward=8, source=_LOSS)
"""The output projection works in chunks beside an adapter: fp32 logits and log-softmax."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LitGpt(Backend):
    """LitGPT's own modules: keys and values at full width, RMSNorm in fp32, foreach AdamW on bf16 states.

    Attributes:
        fsdp: Whether FSDP1 shards the model and blocks are recomputed.
        head: Whether the output projection is adapted too.
    """

    framework: ClassVar[str] = "LitGpt"

    fsdp: bool = False
    head: bool = False

    def dtypes(self, spec: RunSpec) -> Dtypes:
        """Everything in bf16 (``precision: bf16-true``)."""
        return Dtypes(
            parameters="bf16",
            compute="bf16",
            gradients="bf16",
            accumulate="bf16",
            master=None,
            optimizer_states="bf16",
            reduce="bf16",
        )

    def engine(self, spec: RunSpec) -> EngineTraits:
        """Modules much like those of ``transformers``."""
        return EngineTraits(
            library="transformers",
            size=2,
            residual_size=2,
            sequence_length=spec.sequence_length,
            optimizer="foreach",
            key_heads=spec.model.num_attention_heads,
            logits=WHOLE if spec.adapter.name == "none" else CHUNKED,
        )

    def overheads(self, rank: RankModel) -> Iterator[MemoryTerm]:
        """The adapter of the output projection, gradients in flight, FSDP1 or buckets."""
        if self.head:
            yield from adapted_head(rank)
        if self.fsdp:
            yield from hf_trainer.gathered(rank)
            yield from hf_trainer.unsharded_gradients(rank)
            yield from unreduced_gradients(rank)
            return
        if rank.spec.data_degree > 1:
            what, w = "buckets of DistributedDataParallel", rank.elements.trained
            yield term("reduce_buffers", ALWAYS, what, "2 * w", "torch reducer.cpp", w=w)
        yield hf_trainer.largest_gradient(rank)


def unreduced_gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """Whole gradients of FSDP1's ``no_sync`` from one micro-batch to the next, beyond shards: ``2 P (1 - 1 / N)``."""
    if rank.spec.gradient_accumulation > 1:
        w, shard, source = rank.elements.trained, rank.elements.gradients, "Fabric.no_backward_sync"
        yield term("gradients", PASSES, "unreduced gradients", "2 * (w - shard)", source, w=w, shard=shard)


def adapted_head(rank: RankModel) -> Iterator[MemoryTerm]:
    """The output projection's adapter: ``r (h + V)`` parameters with states, its input after dropout and a mask."""
    h, r, source = rank.spec.model.hidden_size, rank.spec.adapter.rank, "litgpt/lora.py"
    yield term("parameters", ALWAYS, "adapter of the head", "6 * r * (h + V)", source, r=r, h=h, V=rank.vocabulary)
    yield term("activations", LOSS, "the head's dropout", "3 * h * tok", source, h=h, tok=rank.tokens)


def express(line: Line) -> Expressed:
    """Full runs on several GPUs are FSDP1 with every block recomputed; LoRA and QLoRA run on one whatever there is."""
    if line["compile"] != "false":
        raise LeftOutError("a compiler that chooses what is saved")
    if line["quant"]:
        raise LeftOutError("Fabric's bitsandbytes precision, whose saved tensors are not known")
    devices = re.search(r"yaml devices=(\d+)", line["notes"])
    adapted = re.search(r"lora q/k/v/proj/mlp/head=([^;]*)", line["notes"])
    if "config_hub" in line["framework_version"] and devices is None:
        raise LeftOutError("no recipe states the run's settings")
    gpus = int(devices.group(1)) if devices is not None else int(line["n_gpus"])
    sharded = gpus > 1 and devices is not None
    switches = [word == "true" for word in adapted.group(1).split("/")] if adapted is not None else []
    settings = _model(line) | {
        "cluster.gpus_per_node": gpus,
        "cluster.nodes": 1,
        "train.global_batch_size": line["global_batch"] or gpus * int(line["micro_batch"]),
        "parallel.shard": sharded,
        "checkpointing": "full" if sharded else "none",
    }
    if line["lora_rank"]:
        settings |= _adapter(line, switches)
    return Expressed(backend=LitGpt(fsdp=sharded, head=any(switches[5:])), settings=settings)


def _model(line: Line) -> dict[str, object]:
    """LitGPT ties no weights; without a gate the block is a GPT's, with rotary positions (``litgpt/config.py``)."""
    if line["activation_fn"] != "gelu":
        return {"model.tie_word_embeddings": False}
    return {
        "model.tie_word_embeddings": False,
        "model.family": "gpt",
        "model.hidden_act": "gelu",
        "model.normalization": "layernorm",
        "model.mlp_bias": line["model_name"] != "Falcon-7B",
        "model.attention_bias": line["model_name"] != "Falcon-7B",
    }


def _adapter(line: Line, switches: list[bool]) -> dict[str, object]:
    """Queries, keys and values are one linear layer and have one dropout; its rate is the script's default, 0.05."""
    names = ("c_attn", "c_proj", "c_fc") if line["activation_fn"] == "gelu" else ("q_proj", "o_proj", "gate_proj")
    targets = [name for name, on in zip(names, (any(switches[:3]), *switches[3:5]), strict=False) if on]
    if "gate_proj" in targets:
        targets += ["up_proj", "down_proj"]
    return {
        "adapter": "lora",
        "adapter.rank": line["lora_rank"],
        "adapter.targets": f"[{','.join(targets)}]",
        "adapter.dropout": 0.05,
    }
