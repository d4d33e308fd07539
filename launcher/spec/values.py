"""The kinds of values that keys of a specification take: ranges, number formats, devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal


@dataclass(frozen=True, slots=True)
class Range:
    """The closed range that a number must lie in; a missing end is open. Read by ``parse``."""

    low: float | None = None
    high: float | None = None


type Count = Annotated[int, Range(low=1)]
type Layers = Annotated[int, Range(low=1, high=10_000)]  # They are counted one by one.
type Natural = Annotated[int, Range(low=0)]
type Positive = Annotated[float, Range(low=1e-30)]
type Small = Annotated[float, Range(low=1e-30, high=1)]  # transformers takes no wider initializer_range.
type Rate = Annotated[float, Range(low=1e-30, high=1e3)]
type Factor = Annotated[float, Range(low=1)]
type NonNegative = Annotated[float, Range(low=0)]
type Probability = Annotated[float, Range(low=0, high=1)]
type Dtype = Literal["fp32", "fp16", "bf16", "fp8"]
type Device = Literal["cpu", "cuda"]
type Offload = Literal["none", "cpu", "nvme"]
