"""Bytes of the tensors of one micro-batch and of one block on one of nanotron's ranks."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of bf16 tensors of one micro-batch on one tensor-parallel rank.

    Attributes:
        whole: The residual stream of all tokens, as a row's linear makes it and a column's linear reads it.
        row: The rank's share of it.
        keys: Keys, or values.
        width: The MLP's inner tensor.
        statistics: Attention's log-sum-exp in fp32.
        logits: The rank's share of the vocabulary.
        weights: Bytes of the gradients of a block's four matrices, by name.
        table: Bytes of the gradient of the token table.
        table_rows: Bytes of the fp32 rows that the table's gradient is summed from.
    """

    whole: int
    row: int
    keys: int
    width: int
    statistics: int
    logits: int
    weights: dict[str, int]
    table: int
    table_rows: int

    @property
    def attention(self) -> int:
        """Queries, keys and values together."""
        return self.row + 2 * self.keys


def sizes(spec: RunSpec) -> Sizes:
    """The sizes of a run."""
    model, degree = spec.model, spec.parallel.tensor
    hidden, keys, width = model.hidden_size, model.key_value_size, model.intermediate_size
    tokens = spec.micro_batch_size * spec.sequence_length
    vocabulary = model.vocab_size // degree
    # embedding_dense_backward of aten/src/ATen/native/cuda/Embedding.cu: at most so many partial sums, in fp32.
    partial_sums = min(tokens, vocabulary) + tokens // 10
    return Sizes(
        whole=2 * hidden * tokens,
        row=2 * hidden * tokens // degree,
        keys=2 * keys * tokens // degree,
        width=2 * width * tokens // degree,
        statistics=4 * model.num_attention_heads * tokens // degree,
        logits=2 * vocabulary * tokens,
        weights={
            "qkv": 2 * (hidden + 2 * keys) * hidden // degree,
            "output": 2 * hidden * hidden // degree,
            "gate_up": 4 * width * hidden // degree,
            "down": 2 * width * hidden // degree,
        },
        table=2 * vocabulary * hidden,
        table_rows=4 * hidden * partial_sums,
    )
