"""Mamba-2 (arXiv:2405.21060): a state space whose scan runs in chunks of the sequence.

In torch it is ``mamba2_chunk_scan`` of transformers' classes, which holds several tensors of ``heads x chunk`` numbers
per token; as Triton kernels ``mamba_split_conv1d_scan_combined`` of ``mamba_ssm``, which keeps the projection and the
scan's output and recomputes the rest.
"""

from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from launcher.estimate.families._decoders.kinds import Part
from launcher.estimate.families._transformers import _read
from launcher.estimate.families._weights import linear
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Module, SavedTensor, Scan, Scans, Weight

MODULE: Module = "mixer"
PACKAGES = ("mamba-ssm", "causal-conv1d")
UNWRAPPED: tuple[str, ...] = ("out_proj",)  # The kernel reads its weight, and peft refuses it.
_FP32 = 4


class Sizes(NamedTuple):
    """Sizes of one mixer, in elements."""

    heads: int
    head_dim: int
    state: int  # Size of the state per element of a head.
    groups: int  # Groups of heads that share the state's inputs and outputs, B and C.
    conv: int  # Tokens that the convolution sees.
    chunk: int  # Tokens of a chunk.
    norm: bool  # True if a norm follows the scan.

    @property
    def inner(self) -> int:
        """Width of all heads."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Width of the convolution: the heads' inputs, and B and C of each group."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Width of the first linear layer's output: the gate, the convolved part, and a time step per head."""
        return self.inner + self.convolved + self.heads


def sizes(part: Part) -> Sizes:
    """The sizes of a layer's mixer, from its class's keys."""
    heads, state, groups, conv, chunk = (part.size(word) for word in ("heads", "state", "groups", "conv", "chunk"))
    inner = part.size("inner") or part.model.hidden_size * (part.size("expand") or 2)
    head_dim = part.size("head_dim") or inner // max(heads, 1)
    return Sizes(heads, head_dim, state, groups, conv, chunk, bool(part.size("norm")))


def weights(part: Part) -> list[Weight]:
    """Weights of two linear layers, the convolution, the norm, and per head a decay, a skip and a time step bias."""
    one, name, hidden = sizes(part), part.found.mixer, part.model.hidden_size
    bias = bool(part.size("bias"))
    conv = [Weight(name=f"{name}.conv1d.weight", shape=(one.convolved, 1, one.conv), split="tensor")]
    if part.size("conv_bias"):
        conv.append(Weight(name=f"{name}.conv1d.bias", shape=(one.convolved,), split="tensor"))
    heads = [Weight(name=f"{name}.{each}", shape=(one.heads,), split="tensor") for each in ("dt_bias", "A_log", "D")]
    norm = [Weight(name=f"{name}.norm.weight", shape=(one.inner,), split="tensor")] if one.norm else []
    first = linear(f"{name}.in_proj", one.projected, hidden, bias=bias)
    if "out_bias" in part.found.sizes:
        bias = bool(part.size("out_bias"))
    last, *others = linear(f"{name}.out_proj", hidden, one.inner, bias=bias, rows=False)
    return [*heads, *conv, *first, *norm, replace(last, whole=True), *others]


def readers(part: Part) -> tuple[str, ...]:
    """The first linear layer."""
    return ("in_proj",)


def saved(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors that the scan keeps: as kernels the projection and the scan's output, in torch all its operands."""
    one = sizes(part)
    if engine.scan_kernels:
        statistic = _FP32 * one.groups if one.norm else 0
        return [
            SavedTensor("projection", engine.size * one.projected, "tensor", "mixer"),
            SavedTensor("scan output", engine.size * one.inner + statistic, "tensor", "mixer"),
        ]
    scan, skip = _scan(one, engine), _FP32 * one.inner
    named, normed = min(_named(one, engine), scan), skip if one.norm else 0
    operands = SavedTensor("operands of the scan's products", scan - named, "tensor", "mixer")
    behind = [
        replace(operands, made=operands.bytes + _locals(one, engine)),
        SavedTensor("norm of the scan", _norm(one, engine) - normed, "tensor", "mixer"),
        _read("normalized scan", normed, "tensor", "mixer", ("norm",)),
        _read("input of out_proj", engine.size * one.inner, "tensor", "mixer", ("out_proj",)),
    ]
    return [
        SavedTensor("convolution", _convolution(one, engine), "tensor", "mixer"),
        SavedTensor("time steps", _time_steps(one, engine), "tensor", "mixer"),
        _read("input of the skip", skip, "tensor", "mixer", ("D",)),
        SavedTensor("scan", named - skip, "tensor", "mixer"),
        *(replace(row, in_forward_peak=False) for row in behind),
    ]


def _convolution(one: Sizes, engine: EngineTraits) -> int:
    """Bytes of its input, a slice of the whole projection or under autocast a copy, and its output before activation.

    The output is ``conv - 1`` places longer than the sequence.
    """
    length = engine.sequence_length
    made = Fraction(one.convolved * (length + one.conv - 1), length)
    return ceil(engine.size * ((one.convolved if engine.autocast else one.projected) + made))


def _time_steps(one: Sizes, engine: EngineTraits) -> int:
    """Bytes of time steps before and after the softplus, once in fp32 or twice if copied; a chunk's decays 3 times."""
    copies = 1 if engine.size == _FP32 else 2
    return one.heads * (2 * engine.size + copies * _FP32 + 3 * _FP32)


def _scan(one: Sizes, engine: EngineTraits) -> int:
    """Bytes of ``mamba2_chunk_scan``: inputs, decays and scores of a chunk, states of each chunk, and products.

    In fp32, except the operands of products, which autocast narrows. The input kept for the skip is a copy; the input
    before the time step is another copy if the compute format is not fp32, else the convolution's output.
    """
    narrow = engine.size if engine.autocast else _FP32
    chunks = ceil(Fraction(engine.sequence_length, one.chunk))
    scores, entering = one.heads * one.chunk, one.heads * one.state
    inputs = _FP32 * (one.inner + (one.convolved if engine.size == _FP32 else one.inner))
    decays = _FP32 * (scores + entering) + narrow * (2 * scores + 4 * entering)  # L; G and M; of B and C.
    products = narrow * 3 * one.inner  # The inputs of two products and the output of a third.
    states = narrow * Fraction(entering * one.head_dim * (2 * chunks + 1), engine.sequence_length)
    pairs = Fraction(one.heads * (chunks + 1) ** 2, engine.sequence_length)
    between = pairs * (_FP32 + (narrow if narrow < _FP32 else 0))
    return ceil(inputs + decays + products + states + between)


def _named(one: Sizes, engine: EngineTraits) -> int:
    """Bytes per token that the scan holds at its peak if nothing is saved: the fp32 tensors that it references.

    ``L``, ``G`` and ``M``; ``B``, ``C`` and ``B_decay``; the inputs with and without time steps; states and those of
    each chunk. At its end four products and the output before and after the skip; at the product of ``C`` and the
    states two products, and copies of both operands.
    """
    chunks = ceil(Fraction(engine.sequence_length, one.chunk))
    state = Fraction(one.inner * one.state, engine.sequence_length)
    last = 5 * one.inner + state * (chunks + 2)
    product = 2 * one.inner + one.heads * one.state + state * (2 * chunks + 2)
    return ceil(_FP32 * (3 * one.heads * (one.chunk + one.state) + 2 * one.inner + max(last, product)))


def _locals(one: Sizes, engine: EngineTraits) -> int:
    """Bytes per token that the scan references at its end beside what it saves.

    ``M``; padded ``C`` and ``B_decay``; the padded input, the skip, the contribution of earlier chunks, and both sums
    with it in fp32; the chunk's own contribution; and the state before the first chunk. The caller references the
    convolution's output, which the scan copies if it is narrower, and the projection, which autocast copies.
    """
    narrow, copied = engine.size if engine.autocast else _FP32, one.convolved if engine.size < _FP32 else 0
    around = engine.size * (copied + (one.projected if engine.autocast else 0))
    wide = one.heads * (one.chunk + 2 * one.state) + 5 * one.inner
    return ceil(_FP32 * (wide + Fraction(one.inner * one.state, engine.sequence_length)) + narrow * one.inner) + around


def _norm(one: Sizes, engine: EngineTraits) -> int:
    """Bytes of the gate's activation and the output multiplied by it, in groups, and their deviations; in fp32.

    Without a norm the activation has the compute format, and the output is the scan's.
    """
    if not one.norm:
        return (_FP32 + engine.size) * one.inner
    copies = 4 if engine.size == _FP32 else 5
    return _FP32 * (copies * one.inner + one.groups)


def gradients(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """The most that the backward pass holds besides."""
    one = sizes(part)
    # At its start, in the norm: three fp32 gradients of the heads, and that of the projection's input, if narrower.
    in_the_norm = (3 * _FP32 + (engine.size if engine.size < _FP32 else 0)) * one.inner
    size = kernels(one, engine) if engine.scan_kernels else in_the_norm
    return [SavedTensor("inside the scan's backward pass", size, "tensor", "mixer")]


def kernels(one: Sizes, engine: EngineTraits) -> int:
    """Bytes that the kernels' backward pass holds at its peak, at the gradient of the state's outputs.

    ``MambaSplitConv1dScanCombinedFn.backward`` and ``_mamba_chunk_scan_combined_bwd`` of ``mamba_ssm`` 2.3,
    ``ops/triton/ssd_combined.py``: the recomputed output of the convolution, the gradients of the projection and of its
    convolved part, the recomputed output of the norm, and the gradients after and before it, in the compute format; a
    chunk's scores per group, and its states, in fp32 and in the compute format, with their gradient; the state's inputs
    and outputs have fp32 gradients per group, for at least one program.
    """
    size = engine.size
    kept = size * (2 * one.convolved + one.projected + 3 * one.inner)
    scores = _FP32 * one.groups * one.chunk
    states = Fraction(one.inner * one.state, one.chunk) * (_FP32 + 2 * size)
    return ceil(kept + scores + states + 2 * _FP32 * one.groups * one.state + 8 * _FP32 * one.heads)


def scans(part: Part, size: int) -> Scans:
    """The scan kernels of a layer's mixer."""
    return scans_of(sizes(part), size)


def scans_of(one: Sizes, size: int) -> Scans:
    """The kernels of ``mamba_ssm``, each reading its operands and writing its result once (``ops/triton/ssd_*.py``).

    Forward: the convolution; decays of a chunk; its scores ``C B``; states of a chunk ``B x``; passing them from chunk
    to chunk; and the output, from the scores and from the states. Backward repeats the first five, and computes the
    products of each gradient.
    """
    scores, group = one.heads * one.chunk, one.groups * one.state
    states = Fraction(one.inner * one.state, one.chunk)
    read = size * one.inner + 2 * _FP32 * one.heads
    convolution = Scan(2 * one.conv * one.convolved, 2 * size * one.convolved)
    decays = Scan(0, (size + 2 * _FP32) * one.heads)
    pairs = Scan(2 * group * one.chunk, size * 2 * group + _FP32 * one.groups * one.chunk)
    into = Scan(2 * one.inner * one.state, read + size * group + float(_FP32 * states))
    passing = Scan(0, float((_FP32 + size) * states))
    out = Scan(
        2 * one.inner * one.state + 2 * scores * one.head_dim,
        read + size * (group + one.inner) + _FP32 * one.groups * one.chunk + float(size * states),
    )
    norm = Scan(0, 3 * size * one.inner)
    again = (convolution, decays, pairs, into, passing)
    back = (
        Scan(2 * one.inner * one.state, read + size * group + float(_FP32 * states)),  # Of the states.
        Scan(0, float((2 * _FP32 + 2 * size) * states)),  # Their passage back.
        Scan(2 * one.inner * (one.state + one.chunk), 2 * read + size * (group + one.inner) + float(size * states)),
        Scan(2 * one.inner * one.state, read + (size + _FP32) * group + float(size * states)),  # Of what enters.
        Scan(2 * one.inner * one.state, read + (size + _FP32) * group + float(size * states)),  # Of what leaves.
        Scan(2 * one.inner * one.chunk, 2 * read + _FP32 * one.groups * one.chunk),  # Of the scores.
        Scan(4 * group * one.chunk, 2 * (_FP32 * one.groups * one.chunk + (size + _FP32) * group)),
        Scan(2 * one.inner * one.chunk, 2 * read + _FP32 * one.groups * one.chunk),  # Of the decays.
        Scan(4 * one.conv * one.convolved, 4 * size * one.convolved),
        Scan(0, 6 * size * one.inner),  # Of the norm.
    )
    return Scans((convolution, decays, pairs, into, passing, out, norm), (*again, *back))
