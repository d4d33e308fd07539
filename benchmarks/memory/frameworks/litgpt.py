"""LitGPT on one GPU or with FSDP1, in bf16 throughout, as a backend that is only checked: whole, LoRA and QLoRA.

What its modules save was followed in a trace of the live tensors of LitGPT 0.5.3 under fake tensors, whose peaks are
those of its table of recipes within 0.5 %. QLoRA is Lightning's bitsandbytes plugin with bitsandbytes 0.42, whose
product keeps its input on the graph's node: it goes only with the loss, after the next forward pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from benchmarks.memory.frameworks import hf_trainer
from benchmarks.memory.frameworks.expressed import Expressed, LeftOutError, Line
from launcher.base.formula import Value
from launcher.estimate.memory.estimate import Backend
from launcher.estimate.memory.moments import ALWAYS, LOSS, PASSES, UNTIL_FIRST_GRADIENTS, Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.engine import EngineTraits, LogitsBytes
from launcher.estimate.rank.formats import Dtypes
from launcher.estimate.rank.model import NF4_BITS, RankModel
from launcher.spec import RunSpec

_BACKWARD: Moments = frozenset(("block_backward", "next_block_backward", "second_layer_backward"))
_LOSS = "litgpt/utils.py, chunked_cross_entropy, on logits that Fabric's precision plugin casts to fp32"
_MODEL = "litgpt/model.py, CausalSelfAttention"
_CHUNK = 128
"""Tokens of a sequence whose logits a model with adapters makes at once (litgpt/finetune/lora.py)."""

WHOLE = LogitsBytes(output=6, loss=12, backward=16, source=_LOSS)
"""fp32 logits, their copy without the last token and the log-softmax; in backward gradients of chunks and of all."""

PRETRAINED = LogitsBytes(output=6, loss=8, backward=12, source=_LOSS)
"""Labels come shifted: no copy without the last token (litgpt/pretrain.py)."""


def chunked(spec: RunSpec) -> LogitsBytes:
    """The output projection works in chunks beside an adapter: fp32 logits and log-softmax.

    In backward the first chunk's two gradients beside all that and the other chunks' log-softmax; or later, with the
    gradients of all chunks in 16 bits, the projection's weight where it is unpacked for its product.
    """
    backward = 6 if _unpacks(spec) else 8 + 8 * _part(spec)
    return LogitsBytes(output=6, loss=8, backward=backward, source=_LOSS)


def _part(spec: RunSpec) -> Fraction:
    return Fraction(_CHUNK, max(spec.sequence_length, _CHUNK))


def _unpacks(spec: RunSpec) -> bool:
    """True if a 4-bit projection's two copies in 16 bits take more than the loss's gradients before them."""
    tokens = spec.micro_batch_size * spec.sequence_length
    return spec.adapter.name == "qlora" and 4 * spec.model.hidden_size >= (2 + 8 * _part(spec)) * tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class LitGpt(Backend):
    """LitGPT's own modules: keys and values at full width, RMSNorm in fp32, foreach AdamW on bf16 states.

    Attributes:
        fsdp: Whether FSDP1 shards the model.
        head: Whether the output projection is adapted too.
        padded: Whether some of queries, keys and values have no adapter, so that zeros are put between the others'.
        parallel: Whether attention and MLP read the same input side by side (GPT-NeoX, Falcon, phi).
        pretrained: Whether it is the script for training from scratch.
    """

    framework: ClassVar[str] = "LitGpt"

    fsdp: bool = False
    head: bool = False
    padded: bool = False
    parallel: bool = False
    pretrained: bool = False

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
        """Modules much like those of ``transformers``.

        Queries are joined by heads before tokens, and flash attention's output has the order of its queries
        (``empty_like``), so that the output projection reads a copy.
        """
        return EngineTraits(
            library="transformers",
            size=2,
            residual_size=2,
            sequence_length=spec.sequence_length,
            optimizer="foreach",
            attention_copy=True,
            key_heads=spec.model.num_attention_heads,
            logits=chunked(spec) if spec.adapter.name != "none" else PRETRAINED if self.pretrained else WHOLE,
        )

    def overheads(self, rank: RankModel) -> Iterator[MemoryTerm]:
        """Terms that LitGPT adds: saved tensors, adapters, gradients in flight, and buffers of FSDP1 or DDP."""
        yield from self.saved(rank)
        if self.head:
            yield from adapted_head(rank)
        if rank.spec.adapter.name == "qlora":
            yield from quantised_head(rank)
            yield from inputs_of_the_last_pass(rank, parallel=self.parallel)
        if self.fsdp:
            yield from hf_trainer.gathered(rank)
            yield prefetched(rank)
            yield from hf_trainer.unsharded_gradients(rank)
            yield from unreduced_gradients(rank)
            return
        if rank.spec.data_degree > 1:
            what, w = "buckets of DistributedDataParallel", rank.elements.trained
            yield term("reduce_buffers", ALWAYS, what, "2 * w", "torch reducer.cpp", w=w)
        yield hf_trainer.largest_gradient(rank)

    def saved(self, rank: RankModel) -> Iterator[MemoryTerm]:
        """Bytes that a block saves beyond those of transformers.

        With as many keys as queries the values are a view of all three projections, ``2 (q + kv)`` more; outputs of
        adapters that zeros are put between, which ``index_copy`` saves; inputs of quantised products. Side by side
        attention and MLP save one input, not two: ``2 h`` less.
        """
        model = rank.spec.model
        h, q, kv = model.hidden_size, model.query_size, model.key_value_size
        k = 2 * (q + kv) if q == kv else 0
        k += 2 * (q + kv) if self.padded else 0
        k += _product_inputs(rank, parallel=self.parallel) if rank.spec.adapter.name == "qlora" else 0
        k -= 2 * h if self.parallel else 0
        yield from _of_blocks(rank, k, "joined projections, inputs of products", _MODEL)


def _product_inputs(rank: RankModel, *, parallel: bool) -> int:
    """Inputs of 4-bit products that nothing else saves: norms' outputs, attention's copied output, MLP's product."""
    model = rank.spec.model
    norms = model.hidden_size * (1 if parallel else 2)
    return 2 * (norms + model.query_size + model.intermediate_size)


def _of_blocks(rank: RankModel, k: int, what: str, source: str) -> Iterator[MemoryTerm]:
    """``k`` bytes a token of each block whose pass saves, until its gradient has passed."""
    if k <= 0:
        return
    kept, layers = rank.spec.checkpointing.mode != "full", rank.layers
    at: dict[Moments, int] = {
        UNTIL_FIRST_GRADIENTS - {"block_backward"}: layers if kept else 0,
        frozenset(("block_backward",)): layers if kept else 1,
        frozenset(("next_block_backward",)): layers - 1 if kept else 1,
        frozenset(("second_layer_backward",)): min(layers, 2) if kept else 1,
    }
    for moments, n in at.items():
        values: dict[str, Value] = {"n": n, "k": k, "tok": rank.tokens}
        yield term("activations", moments, what, "n * k * tok", source, **values)


def quantised_head(rank: RankModel) -> Iterator[MemoryTerm]:
    """The output projection is in 4 bits too, and at its product in fp16 and bf16 beside them, of which one is counted.

    Weights are quantised from fp16, so that they come back in fp16 and are cast (lightning
    ``fabric/plugins/precision/bitsandbytes.py``, ``quantize``; bitsandbytes ``MatMul4Bit``).
    """
    if not _unpacks(rank.spec):
        return
    w, source = rank.head.largest, "lightning/fabric/plugins/precision/bitsandbytes.py; bitsandbytes MatMul4Bit"
    what, bits = "4-bit output projection beside its copies", NF4_BITS[False]
    yield term("parameters", ("loss_backward",), what, "(bits + 16) * w / 8", source, bits=bits, w=w)


def inputs_of_the_last_pass(rank: RankModel, *, parallel: bool) -> Iterator[MemoryTerm]:
    """Inputs of all 4-bit products of the micro-batch before, attention's output too, until its loss is replaced.

    bitsandbytes 0.42 ``autograd/_functions.py``, ``MatMul4Bit``: ``ctx.tensors = (A, B)`` is no saved tensor.
    """
    k = _product_inputs(rank, parallel=parallel)
    what, values = "inputs of products on the last graph", {"n": rank.layers, "k": k, "tok": rank.tokens}
    yield term(
        "activations", UNTIL_FIRST_GRADIENTS | _BACKWARD, what, "n * k * tok", "bitsandbytes 0.42, MatMul4Bit", **values
    )


def prefetched(rank: RankModel) -> MemoryTerm:
    """The block whose backward pass is next, gathered ahead: torch's default, which Lightning leaves alone."""
    z, block = rank.engine.size, rank.compute_parameters(rank.largest_block)
    what, source = "block gathered ahead", "torch/distributed/fsdp, BackwardPrefetch.BACKWARD_PRE"
    return term("gather_buffers", _BACKWARD, what, "z * block", source, z=z, block=block)


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
    """Full runs on several GPUs use FSDP1 with every block recomputed; LoRA and QLoRA always run on one GPU.

    The script for training from scratch recomputes nothing, under FSDP1 or DistributedDataParallel.
    """
    if line["compile"] != "false":
        raise LeftOutError("a compiler that chooses what is saved")
    devices = re.search(r"yaml devices=(\d+)", line["notes"])
    adapted = re.search(r"lora q/k/v/proj/mlp/head=([^;]*)", line["notes"])
    if "config_hub" in line["framework_version"] and (devices is None or (line["quant"] and not line["lora_rank"])):
        raise LeftOutError("no recipe states the run's settings")
    gpus = int(devices.group(1)) if devices is not None else int(line["n_gpus"])
    sharded = gpus > 1 and (devices is not None or line["zero_stage"] not in ("", "0"))
    if not (line["lora_rank"] or sharded) and 8e9 * float(line["params_b"]) > _CARD.get(line["gpu"], 1e12):
        raise LeftOutError("weights, gradients and moments as stated exceed the card")
    switches = [word == "true" for word in adapted.group(1).split("/")] if adapted is not None else []
    settings = _model(line) | {
        "cluster.gpus_per_node": gpus,
        "cluster.nodes": 1,
        "train.global_batch_size": _global_batch(line, gpus, sharded=sharded),
        "parallel.shard": sharded,
        "checkpointing": "full" if sharded and devices is not None else "none",
    }
    if line["lora_rank"]:
        settings |= _adapter(line, switches)
    backend = LitGpt(
        fsdp=sharded,
        head=any(switches[5:]),
        padded=any(switches[:3]) and not all(switches[:3]),
        parallel=line["activation_fn"] == "gelu",
        pretrained=devices is None,
    )
    return Expressed(backend=backend, settings=settings)


_CARD = {"A10G-24GB": 24 * 2**30, "A100-SXM4-40GB": 40 * 2**30}
"""Bytes of a card at most."""


def _global_batch(line: Line, gpus: int, *, sharded: bool) -> int:
    """The stated batch; else the pre-training script's default, or for FSDP runs that of the notes."""
    noted = re.search(r"global batch (\d+) for FSDP runs via CLI, (\d+) default otherwise", line["notes"])
    if noted is not None:
        return int(noted.group(1 if sharded else 2))
    return int(line["global_batch"] or gpus * int(line["micro_batch"]))


def _model(line: Line) -> dict[str, object]:
    """Model overrides: LitGPT ties no weights; an ungated block is GPT's with rotations (``litgpt/config.py``)."""
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
        "adapter": "qlora" if line["quant"] else "lora",
        **({"adapter.double_quant": False} if line["quant"] == "nf4" else {}),
        "adapter.rank": line["lora_rank"],
        "adapter.targets": f"[{','.join(targets)}]",
        "adapter.dropout": 0.05,
    }
