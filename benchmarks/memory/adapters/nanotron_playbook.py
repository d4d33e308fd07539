"""nanotron's runs for the Ultra-Scale Playbook, a framework that is only checked; the first stage was measured.

bf16 parameters and gradients, fp32 accumulation and master weights, fused AdamW, ZeRO 0 or 1, tensor parallelism with
Megatron's sequence parallelism, 1F1B, fused attention, no recomputation. The file does not say whether the inputs that
sequence parallelism gathers are gathered again in backward (``tp_recompute_allgather``), as nanotron's default is and
as is assumed here, or kept, which costs ``2 x 2 h`` bytes a token and layer more; runs of both kinds are in it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from benchmarks.memory.row import Row
from launcher.blocks import Engine
from launcher.catalog import Catalog
from launcher.dtypes import Dtypes
from launcher.errors import ConfigErrors
from launcher.held import Held
from launcher.request import request
from launcher.spec import ModelSpec, RunSpec
from launcher.terms import ALWAYS, MemoryTerm, Moment, Pile
from launcher.units import GIB, count

GPUS_PER_NODE = 8

_FORMATS = Dtypes(
    parameters="bf16",
    compute="bf16",
    gradients="bf16",
    accumulate="fp32",
    master="fp32",
    optimizer_states="fp32",
    reduce="fp32",
)
_BACKWARD: frozenset[Moment] = frozenset((
    "loss_backward",
    "block_backward",
    "next_block_backward",
    "second_layer_backward",
))
_GRADIENT = "nanotron optim/gradient_accumulator.py"


@dataclass(frozen=True, slots=True)
class Nanotron:
    """nanotron as a backend of the memory model; its blocks save what Megatron-core's save."""

    def dtypes(self, spec: RunSpec) -> Dtypes:
        """One format for all runs."""
        return _FORMATS

    def engine(self, spec: RunSpec) -> Engine:
        """Whole fp32 gradients in one permanent buffer, a vocabulary-parallel loss, fused kernels."""
        return Engine(
            library="megatron",
            size=2,
            residual_size=2,
            sequence_length=spec.sequence_length,
            vocabulary_multiple=spec.parallel.tensor,
            gradients_stay=True,
            vocabulary_parallel=True,
        )

    def overheads(self, held: Held) -> Iterator[MemoryTerm]:
        """Buffers beside parameters, fp32 gradients, master weights and moments."""
        yield from buckets(held)
        yield from gathered_parameters(held)
        yield from gathered_sequence(held)
        yield from copied_logits(held)
        largest = 2 * max(held.largest_block.largest, held.root.largest)
        yield _term("temporary", _BACKWARD, largest, "bf16 gradient of one weight", _GRADIENT)


def buckets(held: Held) -> Iterator[MemoryTerm]:
    """The bf16 buckets of DistributedDataParallel, which wraps the model where it has copies: ``2 P``."""
    if held.spec.world.data > 1:
        elements = held.elements.whole
        yield _term("reduce_buffers", ALWAYS, 2 * elements, f"bf16 buckets of {count(elements)}", _GRADIENT)


def gathered_parameters(held: Held) -> Iterator[MemoryTerm]:
    """ZeRO 1 gathers the stepped bf16 parameters from a flat shard into a flat copy: ``2 P / d + 2 P``."""
    if held.spec.zero.stage == 1 and held.spec.world.data > 1:
        size = 2 * (held.elements.optimizer + held.elements.whole)
        yield _term("gather_buffers", frozenset(("step",)), size, "flat bf16 parameters", "nanotron optim/zero.py")


def gathered_sequence(held: Held) -> Iterator[MemoryTerm]:
    """Two permanent buffers for the whole sequence before a linear, in forward and in backward: ``2 x 2 h``."""
    if held.spec.parallel.tensor > 1:
        size = 2 * 2 * held.spec.model.hidden_size * held.tokens
        source = "nanotron parallel/tensor_parallel/functional.py, MemoryBuffer"
        yield _term("gather_buffers", ALWAYS - {"load"}, size, f"2 x 2 B x hidden x {held.tokens:,} tokens", source)


def copied_logits(held: Held) -> Iterator[MemoryTerm]:
    """The loss subtracts the maximum into a second fp32 tensor beside its argument: ``4 V / t`` more in forward."""
    if held.view.head:
        size = int(4 * held.vocabulary * held.view.tensor * held.tokens)
        source = "nanotron parallel/tensor_parallel/functional.py, sharded_cross_entropy"
        yield _term("logits", frozenset(("loss",)), size, "fp32 logits of the loss's argument", source)


def first_and_last(model: ModelSpec, stages: int) -> tuple[int, int]:
    """Layers of the first and of the last stage.

    Layers and the output projection are weighed by their matrices and dealt out in order; a stage is full with the
    block that exceeds its share of the whole (nanotron ``models/base.py``, ``build_model``).
    """
    layer = 4 * model.query_size * model.hidden_size + 3 * model.intermediate_size * model.hidden_size
    costs = [*[layer] * model.num_hidden_layers, model.vocab_size * model.hidden_size]
    stage, sizes = 0, [0] * stages
    for index, total in enumerate(accumulate(costs)):
        sizes[stage] += index < model.num_hidden_layers
        stage += total > sum(costs) * (stage + 1) / stages
    return sizes[0], sizes[-1]


def rows(path: Path) -> Iterator[Row]:
    """Each run of the file."""
    catalog = Catalog(folder=Path.cwd())
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            yield _row(line, catalog)


def _row(line: dict[str, str], catalog: Catalog) -> Row:
    name = line["id"]
    if line["oom"] == "false" and (line["counter"] != "reserved" or line["unit_certain"] != "True"):
        return Row(name=name, left_out="the counter or its unit is uncertain")
    nodes, rest = divmod(int(line["n_gpus"]), GPUS_PER_NODE)
    if rest and nodes:
        return Row(name=name, left_out="a node is not full")
    try:
        spec = request(_overrides(line), catalog=catalog).require()
    except ConfigErrors as error:
        return Row(name=name, left_out=f"does not parse: {error.errors[0].path}")
    stages = spec.parallel.pipeline
    if stages > 1:
        first, last = first_and_last(spec.model, stages)
        if not last:
            return Row(name=name, left_out="the last stage has no layer")
        parallel = replace(spec.parallel, first_stage_layers=first, last_stage_layers=last)
        spec = replace(spec, parallel=parallel)
    measured = {"reserved": round(float(line["peak_mem_gib"]) * GIB)} if line["oom"] == "false" else {}
    oom = "true" if line["oom"] == "true" else "false"
    soft = line["soft"] == "True"
    return Row(name=name, spec=spec, backend=Nanotron(), measured=measured, stage=0, soft=soft, oom=oom)  # type: ignore[arg-type]


def _overrides(line: dict[str, str]) -> list[str]:
    """The run as a user would write it; ``tied_embeddings`` and the like are as the file infers them."""
    gpus = int(line["n_gpus"])
    settings = {
        "model.family": "llama",
        "model.hidden_size": line["hidden"],
        "model.num_hidden_layers": line["layers"],
        "model.num_attention_heads": line["heads"],
        "model.num_key_value_heads": line["kv_heads"],
        "model.intermediate_size": line["ffn"],
        "model.vocab_size": line["vocab"],
        "model.tie_word_embeddings": line["tied_embeddings"],
        "model.max_position_embeddings": line["seq_len"],
        "train.sequence_length": line["seq_len"],
        "train.micro_batch_size": line["micro_batch"],
        "train.global_batch_size": line["global_batch"],
        "parallel.tensor": line["tp"],
        "parallel.pipeline": line["pp"],
        "parallel.sequence": line["sp"],
        "cluster.gpus_per_node": min(gpus, GPUS_PER_NODE),
        "cluster.nodes": max(1, gpus // GPUS_PER_NODE),
    }
    chosen = ["model=7b", "parallel=tp_pp", f"zero={line['zero_stage']}", "hardware=h100_80g", "precision=bf16"]
    return [*chosen, *(f"{key}={value}" for key, value in settings.items())]


def _term(pile: Pile, moments: frozenset[Moment], size: int, formula: str, source: str) -> MemoryTerm:
    return MemoryTerm(pile=pile, moments=moments, bytes=size, formula=formula, source=source)
