"""The gated delta rule (arXiv:2412.06464): linear attention that updates each head's state chunk by chunk.

In torch it is ``torch_chunk_gated_delta_rule`` of transformers' classes, which holds five tensors of ``heads x chunk``
numbers per token; as Triton kernels ``chunk_gated_delta_rule`` of ``fla``, which keeps one of them and the inputs.
"""

from fractions import Fraction
from math import ceil
from typing import NamedTuple

from launcher.estimate.families._decoders.kinds import Part
from launcher.estimate.families._transformers import _read
from launcher.estimate.families._weights import linear
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Module, SavedTensor, Scan, Scans, Weight

MODULE: Module = "mixer"
PACKAGES = ("flash-linear-attention", "causal-conv1d")
UNWRAPPED: tuple[str, ...] = ()
_FP32 = 4
_CHUNK = 64  # Tokens of a chunk, both in torch and in the kernels.


class Sizes(NamedTuple):
    """Sizes of one mixer, in elements."""

    heads: int  # Value heads, each with a state.
    head_dim: int
    key_heads: int  # Query heads, and as many key heads.
    key_dim: int  # Width of a query or key head.
    conv: int  # Tokens that the convolution sees.

    @property
    def values(self) -> int:
        """Width of all value heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of the keys, or queries, of all value heads."""
        return self.heads * self.key_dim

    @property
    def convolved(self) -> int:
        """Width of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.values

    @property
    def states(self) -> Fraction:
        """Elements per token of the states of each chunk."""
        return Fraction(self.keys * self.head_dim, _CHUNK)


def sizes(part: Part) -> Sizes:
    """The sizes of a layer's mixer, from its class's keys."""
    words = ("heads", "head_dim", "key_heads", "key_dim", "conv")
    return Sizes(*(part.size(word) for word in words))


def weights(part: Part) -> list[Weight]:
    """Weights of the linear layers, the convolution, a decay and its bias per head, and the norm of a head."""
    one, name, hidden = sizes(part), part.found.mixer, part.model.hidden_size
    rows = [Weight(name=f"{name}.{each}", shape=(one.heads,), split="tensor") for each in ("dt_bias", "A_log")]
    rows.append(Weight(name=f"{name}.conv1d.weight", shape=(one.convolved, 1, one.conv), split="tensor"))
    for each, outputs in _inputs(part, one).items():
        rows += linear(f"{name}.{each}", outputs, hidden, bias=False)
    rows.append(Weight(name=f"{name}.norm.weight", shape=(one.head_dim,)))
    return rows + linear(f"{name}.out_proj", hidden, one.values, bias=False, rows=False)


def _inputs(part: Part, one: Sizes) -> dict[str, int]:
    """The linear layers that read the norm's output, with their outputs: two fused ones, or four."""
    if part.size("joined"):
        return {"in_proj_qkvz": one.convolved + one.values, "in_proj_ba": 2 * one.heads}
    made = {"in_proj_qkv": one.convolved, "in_proj_z": one.values}
    return {**made, "in_proj_b": one.heads, "in_proj_a": one.heads}


def readers(part: Part) -> tuple[str, ...]:
    """The first linear layers."""
    return tuple(_inputs(part, sizes(part)))


def saved(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by the convolution, the delta rule, and the norm of its output."""
    one = sizes(part)
    rule = _kernels(one, engine) if engine.scan_kernels else _torch(one, engine)
    return [
        SavedTensor("convolution", _convolution(one, engine), "tensor", "mixer"),
        SavedTensor("gates", one.heads * (engine.size + 2 * _FP32), "tensor", "mixer"),
        SavedTensor("delta rule", rule, "tensor", "mixer"),
        SavedTensor("norm of the output", _norm(one, engine), "tensor", "mixer", in_forward_peak=False),
        _read("input of out_proj", engine.size * one.values, "tensor", "mixer", ("out_proj",)),
    ]


def _convolution(one: Sizes, engine: EngineTraits) -> int:
    """Bytes of its input, and in torch also of its output, ``conv - 1`` places longer than the sequence."""
    length = engine.sequence_length
    made = 0 if engine.scan_kernels else Fraction(one.convolved * (length + one.conv - 1), length)
    return ceil(engine.size * (one.convolved + made))


def _torch(one: Sizes, engine: EngineTraits) -> int:
    """Bytes of ``torch_chunk_gated_delta_rule``: in fp32, except the operands of products, which autocast narrows.

    Queries and keys as they are and as operands of the products, copies in fp32; five matrices of a chunk: decays,
    products of keys with keys and of queries with keys, the system and attention inside a chunk; states before each
    chunk. A sequence is padded to whole chunks.
    """
    narrow, wide = engine.size if engine.autocast else _FP32, engine.size == _FP32
    keys = 6 * _FP32 * one.keys if not engine.autocast else (5 * _FP32 + 3 * narrow) * one.keys
    if wide or engine.autocast:
        keys += 4 * narrow * one.keys
    chunks = one.heads * _CHUNK * (2 * _FP32 + 3 * narrow)
    entries = _FP32 * one.values * 2 + (2 * narrow if narrow < _FP32 else _FP32) * one.values
    states = ceil(one.states * (_FP32 + (2 * narrow if narrow < _FP32 else 0)))
    padded = Fraction(ceil(Fraction(engine.sequence_length, _CHUNK)) * _CHUNK, engine.sequence_length)
    before = 2 * _FP32 * one.keys + 3 * _FP32 * one.heads
    return before + ceil(padded * (keys + chunks + entries + states + 3 * _FP32 * one.heads))


def _norm(one: Sizes, engine: EngineTraits) -> int:
    """Bytes of its fp32 input, the normalised values, gate, its fp32 activation, and the product's other operand."""
    return (3 * _FP32 + engine.size + engine.residual_size) * one.values + _FP32 * one.heads


def _kernels(one: Sizes, engine: EngineTraits) -> int:
    """Bytes that ``ChunkGatedDeltaRuleFunction`` of ``fla`` 0.6 saves (``ops/gated_delta_rule/chunk.py``).

    Normalised queries and keys with their norms, values, the cumulative decays, the write gate, and the inverse of each
    chunk's system in the compute format.
    """
    keys = 2 * one.key_heads * (engine.size * one.key_dim + _FP32)
    return keys + engine.size * one.values + one.heads * (_FP32 + engine.size * (1 + _CHUNK))


def gradients(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """The most that the backward pass holds besides.

    As kernels (``chunk_gated_delta_rule_bwd``) the recomputed intermediates of the forward pass with their gradients:
    five tensors of the keys' size, six of the values', and the states of each chunk and their gradient. In torch four
    fp32 tensors of the values' size, in the norm.
    """
    one = sizes(part)
    made = 4 * _FP32 * one.values
    if engine.scan_kernels:
        made = ceil(engine.size * (5 * one.keys + 6 * one.values + 2 * one.states))
    return [SavedTensor("inside the rule's backward pass", made, "tensor", "mixer")]


def scans(part: Part, size: int) -> Scans:
    """The kernels of ``fla``, each reading its operands and writing its result once (``ops/gated_delta_rule``).

    Forward: the convolution; both norms; the system of a chunk and its inverse; the keys and values it gives; states
    from chunk to chunk; the output. Backward repeats the keys and values and the states, and computes the products of
    each gradient.
    """
    one = sizes(part)
    pairs, short = one.heads * _CHUNK, 2 * one.key_heads * one.key_dim
    states = float(one.states) * size
    convolution = Scan(2 * one.conv * one.convolved, 2 * size * one.convolved)
    lengths = Scan(0, 2 * size * short)
    system = Scan(2 * one.keys * _CHUNK, size * short + (_FP32 + size) * pairs)
    inverse = Scan(2 * pairs * _CHUNK, (_FP32 + size) * pairs)
    made = Scan(2 * (one.keys + one.values) * _CHUNK, size * (pairs + short + 2 * one.values + one.keys))
    passing = Scan(4 * one.keys * one.head_dim, size * (2 * one.keys + 2 * one.values) + states)
    out = Scan(
        2 * one.keys * one.head_dim + 2 * (one.keys + one.values) * _CHUNK, size * (short + 2 * one.values) + states
    )
    norm = Scan(0, (6 * _FP32 + 4 * size) * one.values)
    back = (
        Scan(2 * (one.keys + one.values) * _CHUNK, size * (short + 2 * one.values)),  # Of values within a chunk.
        Scan(6 * one.keys * one.head_dim, size * (3 * one.keys + 3 * one.values) + states),  # Of the states.
        Scan(
            8 * one.keys * one.head_dim + 6 * (one.keys + one.values) * _CHUNK,
            size * (6 * one.keys + 4 * one.values) + 2 * states,
        ),  # Of queries, keys and decays.
        Scan(6 * (one.keys + one.values) * _CHUNK, size * (5 * one.keys + 4 * one.values + 2 * pairs)),
        Scan(0, 2 * size * 2 * short),
        Scan(4 * one.conv * one.convolved, 4 * size * one.convolved),
        Scan(0, 2 * (6 * _FP32 + 4 * size) * one.values),  # Of the norm.
    )
    return Scans((convolution, lengths, system, inverse, made, passing, out, norm), (made, passing, *back))
