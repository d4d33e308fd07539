"""Tensors that per-operator selective checkpointing keeps of a block (``launcher/worker/model/recompute.py``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.estimate.rank import adapters
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import SavedTensor, Share, Weight
from launcher.spec import AdapterSpec, ModelSpec


def products(
    block: Sequence[Weight], model: ModelSpec, adapter: AdapterSpec, engine: EngineTraits, *, splits_stream: bool
) -> Iterator[SavedTensor]:
    """The output of every second matrix product, counted in the order of the block's weights.

    Not all of them are tensors that backward needs: the output of the MLP is one that recomputation alone reads. They
    wait in the checkpoint's cache, which hands each over once, so that recomputation adds what backward needs alone.
    An adapter makes two products more beside the one of the linear that it wraps.

    Args:
        block: Its weights, without adapters.
        model: The model.
        adapter: The adapter.
        engine: The engine.
        splits_stream: True where tensor parallel ranks split the tokens of the residual stream.
    """
    if engine.library != "transformers":
        return
    # The grouped products of routed experts are operations of another name, which are not kept.
    linears = [weight for weight in block if len(weight.shape) == 2 and weight.split != "expert"]
    made = [product for weight in linears for product in _of(weight, adapter, engine)]
    if made and adapters.module(linears[-1]) == adapters.module(block[-1]):
        made[-1] = replace(made[-1], last=True)
    yield from made[::2]
    if splits_stream:
        # Where the sequence is split, the sums over tensor parallel ranks are reduce-scatters, which are kept.
        row = SavedTensor(
            name="kept sum",
            bytes=engine.size * model.hidden_size,
            share="residual",
            part="cache",
            kept_by_selective=True,
        )
        yield from (row, replace(row, last=True))


def _of(weight: Weight, adapter: AdapterSpec, engine: EngineTraits) -> Iterator[SavedTensor]:
    """The output of a linear, split where its rows are, and those of its adapter's two products."""
    share: Share = "tensor" if weight.split == "tensor" and weight.dimension == 0 else "token"
    name, size = adapters.module(weight), engine.size
    whole = SavedTensor(
        name="kept product", bytes=size * weight.shape[0], share=share, part="cache", kept_by_selective=True
    )
    yield replace(whole, output_of=name)
    if adapter.name != "none" and name in adapter.targets:
        yield replace(whole, bytes=size * adapter.rank, share="token")
        yield whole
