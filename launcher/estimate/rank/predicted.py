"""Multi-token prediction: layers after the last, each of which predicts one token more (arXiv:2412.19437, section 2.2).

As Megatron-core builds them (``core/transformer/multi_token_prediction.py``): a block like the model's last, before it
a projection of two normed inputs, the hidden states and the embeddings of the next tokens, behind it a norm. The token
table is shared; a stage without it has a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import SavedTensor, Share, Weight
from launcher.spec import ModelSpec

NAME = "multi-token prediction"  # The word for such a block among the kinds of blocks.


def weights(model: ModelSpec, block: Sequence[Weight]) -> tuple[Weight, ...]:
    """The weights of one layer, whose block has these: three norms and the projection ``2 h`` to ``h`` besides."""
    hidden = model.hidden_size
    parts = ("weight", "bias") if model.normalization == "layernorm" else ("weight",)
    norms = [Weight(name=f"{norm}.{part}", shape=(hidden,)) for norm in ("enorm", "hnorm", "norm") for part in parts]
    return (*norms, Weight(name="eh_proj.weight", shape=(hidden, 2 * hidden), split="tensor"), *block)


def outside(model: ModelSpec, engine: EngineTraits) -> tuple[SavedTensor, ...]:
    """Tensors that one layer saves outside of its block, which recomputation leaves: inputs of its three norms."""
    size = engine.size * model.hidden_size
    names = ("embeddings of the next tokens", "hidden states", "input of its last norm")
    return tuple(_row(name, size, "residual") for name in names)


def saved(model: ModelSpec, engine: EngineTraits, block: Sequence[SavedTensor]) -> tuple[SavedTensor, ...]:
    """Tensors that one layer saves, whose block saves these.

    The projection's output is gathered over the tensor parallel ranks, and the block's input is a view of it
    (``_split_along_first_dim`` of ``core/tensor_parallel/mappings.py``), so that all of it stays.
    """
    size = engine.size * model.hidden_size
    rows = list(block)
    rows.remove(next(row for row in rows if row.part == "input"))
    joined = _row("joined inputs of the projection", 2 * size, "residual")
    return (*outside(model, engine), joined, _row("output of the projection", size, "token"), *rows)


def joined_outputs(model: ModelSpec, engine: EngineTraits) -> tuple[SavedTensor, ...]:
    """Hidden states of all depths in one tensor, which the output projection reads part by part."""
    return (_row("hidden states of further tokens", model.mtp_layers * engine.size * model.hidden_size, "residual"),)


def _row(name: str, size: int, share: Share) -> SavedTensor:
    return SavedTensor(name=name, bytes=size, share=share, part="input")
