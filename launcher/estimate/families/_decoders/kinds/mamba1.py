"""Mamba (arXiv:2312.00752); Jamba and Falcon-Mamba have norms of time step, input and output of the state.

In torch it is a loop over tokens, which holds the decays, the inputs and the states of every token; as kernels
``selective_scan_fn`` of ``mamba_ssm`` and ``causal_conv1d_fn``, which keep one state per 2,048 tokens, or, except in
Jamba, the whole mixer as ``mamba_inner_fn``, which recomputes the convolution and the time steps.
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
UNWRAPPED: tuple[str, ...] = ("dt_proj",)  # The class reads its weight and leaves its module out.
_FP32 = 4
_KERNEL_CHUNK = 2048  # Tokens per state that the kernel keeps (``csrc/selective_scan/selective_scan.cpp``).


class Sizes(NamedTuple):
    """Sizes of one mixer, in elements."""

    inner: int
    state: int  # Size of the state per element of ``inner``.
    rank: int  # Rank of the time step.
    conv: int  # Tokens that the convolution sees.
    norms: int  # 1 if time step, B and C have norms with weights, 2 if without, 0 if none.

    @property
    def small(self) -> int:
        """Outputs of ``x_proj``: the time step's rank, and B and C."""
        return self.rank + 2 * self.state


def sizes(part: Part) -> Sizes:
    """The sizes of a layer's mixer, from its class's keys; a non-numeric rank is a 16th of the hidden size."""
    inner, expand, state, rank, conv, norms = map(part.size, ("inner", "expand", "state", "rank", "conv", "norms"))
    hidden = part.model.hidden_size
    return Sizes(inner or expand * hidden, state, rank or -(-hidden // 16), conv, norms)


def weights(part: Part) -> list[Weight]:
    """Weights of four linear layers, the convolution, the decays, a skip, and the norms that have weights."""
    one, name, hidden = sizes(part), part.found.mixer, part.model.hidden_size
    bias = bool(part.size("bias"))
    rows = [Weight(name=f"{name}.A_log", shape=(one.inner, one.state), split="tensor", module=MODULE, whole=True)]
    rows.append(Weight(name=f"{name}.D", shape=(one.inner,), split="tensor"))
    rows.append(Weight(name=f"{name}.conv1d.weight", shape=(one.inner, 1, one.conv), split="tensor"))
    if part.size("conv_bias"):
        rows.append(Weight(name=f"{name}.conv1d.bias", shape=(one.inner,), split="tensor"))
    rows += linear(f"{name}.in_proj", 2 * one.inner, hidden, bias=bias)
    read = linear(f"{name}.x_proj", one.small, one.inner, bias=False, rows=False)
    read += linear(f"{name}.out_proj", hidden, one.inner, bias=bias, rows=False)
    rows += [replace(row, whole=one.norms != 1) for row in read]
    rows += [replace(row, whole=True) for row in linear(f"{name}.dt_proj", one.inner, one.rank, bias=True)]
    norms = {"dt_layernorm": one.rank, "b_layernorm": one.state, "c_layernorm": one.state} if one.norms == 1 else {}
    return rows + [Weight(name=f"{name}.{each}.weight", shape=(size,)) for each, size in norms.items()]


def readers(part: Part) -> tuple[str, ...]:
    """The first linear layer."""
    return ("in_proj",)


def saved(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by the projection and the convolution, the small norms, and the scan."""
    one, size = sizes(part), engine.size
    whole = engine.scan_kernels and one.norms != 1
    scan = _kernels(one, engine, whole=whole) if engine.scan_kernels else _torch(one, engine)
    rows = [
        SavedTensor("projection", 2 * size * one.inner, "tensor", "mixer"),
        SavedTensor("time step and what enters and leaves the state", _small(one, size), "tensor", "mixer"),
        SavedTensor("scan", scan, "tensor", "mixer"),
    ]
    return rows if whole else [*rows, _read("input of out_proj", size * one.inner, "tensor", "mixer", ("out_proj",))]


def _small(one: Sizes, size: int) -> int:
    """Bytes of ``x_proj``'s outputs: fp32 before norms, then the time step, and all of them if norms have weights."""
    if not one.norms:
        return size * one.small
    return (_FP32 + size * (one.norms == 1)) * one.small + size * one.rank + 3 * _FP32


def _torch(one: Sizes, engine: EngineTraits) -> int:
    """Bytes of the convolution's output, ``conv - 1`` places longer than the sequence, and of ``mamba_selective_scan``.

    Four tensors of width ``inner`` in the compute format, the input and the output of the scan in fp32, decays, inputs
    and states of each token in fp32, and states in the compute format if that is narrower. Autocast copies the
    convolution's input.
    """
    size, length = engine.size, engine.sequence_length
    narrow = 0 if size == _FP32 else size
    made = Fraction(one.inner * (length + one.conv - 1), length) + engine.autocast * one.inner
    wide = size * 4 * one.inner + _FP32 * (2 if narrow else 1) * one.inner
    return ceil(size * made + wide + (3 * _FP32 + narrow) * one.inner * one.state + (_FP32 + size) * one.state)


def _kernels(one: Sizes, engine: EngineTraits, *, whole: bool) -> int:
    """Bytes saved beside the projection: input, time steps, output, B, C and fp32 states by ``SelectiveScanFn``.

    ``MambaInnerFn``, the ``whole`` mixer, recomputes input and time steps (``checkpoint_lvl`` 1).
    """
    states = Fraction(2 * _FP32 * one.inner * one.state, _KERNEL_CHUNK)
    return ceil(engine.size * ((1 if whole else 3) * one.inner + 2 * one.state) + states)


def gradients(part: Part, engine: EngineTraits) -> list[SavedTensor]:
    """The most that the backward pass holds besides.

    As kernels the gradients of the scan's input, time steps, gate and output, and of the projection. In torch those of
    decays and of inputs of all tokens, and a tensor as large as each while one token's gradient is added to them.
    """
    one = sizes(part)
    if engine.scan_kernels:
        return [SavedTensor("inside the scan's backward pass", 6 * engine.size * one.inner, "tensor", "mixer")]
    return [SavedTensor("inside the scan's backward pass", 4 * _FP32 * one.inner * one.state, "tensor", "mixer")]


def scans(part: Part, size: int) -> Scans:
    """The kernels of the convolution and the scan, each reading and writing once; the scan's exponentials left out."""
    one = sizes(part)
    convolution, norms = Scan(0, 2 * size * one.inner), Scan(0, 3 * 3 * size * one.small)
    scan = Scan(0, size * (5 * one.inner + 2 * one.state))
    back = (Scan(0, size * (9 * one.inner + 4 * one.state)), Scan(0, 2 * norms.moved), Scan(0, 4 * size * one.inner))
    return Scans((convolution, norms, scan), back)
