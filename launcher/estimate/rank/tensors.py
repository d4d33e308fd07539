"""The tensors of a model: its weights and those that its blocks save, each with its split among ranks."""

from dataclasses import KW_ONLY
from math import prod
from typing import Literal, NamedTuple

from launcher.base.frozen import dataclass

type Split = Literal["replicated", "tensor", "expert"]
type Share = Literal["token", "residual", "tensor", "routed", "routed_tensor"]
type Module = Literal["attention", "mixer", "mlp", "experts", "norm"]
type Part = Literal[
    "input", "norm", "attention", "core_attention", "mixer", "up_projection", "mlp", "moe", "activation", "adapter",
    "cache",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One parameter tensor, or several equal ones."""

    name: str  # As in the checkpoint of the model, without the layer's prefix.
    shape: tuple[int, ...]  # Rows first, as ``torch.nn.Linear`` holds it.
    # ``replicated`` on every tensor-parallel rank, or split over the ``tensor`` or the ``expert`` ranks.
    split: Split = "replicated"
    copies: int = 1  # Number of equal tensors: the routed experts of a layer.
    stacked: bool = False  # True if one matrix has the rows of all copies, one below the other.
    dimension: int = 0  # The dimension that tensor parallelism splits.
    frozen: bool = False  # True if it is not trained.
    quantised: int = 0  # The bits of its codes; 0 where it is held as other parameters are.
    whole: bool = False  # True if it is never quantised, as other code than its linear's reads it.
    outside: bool = False  # True if several blocks use this tensor, which is counted among those outside the blocks.
    module: Module | None = None  # The module of ``checkpointing.modules`` that has it, where its name does not say so.

    @property
    def elements(self) -> int:
        """Elements of all copies."""
        return self.copies * prod(self.shape)


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that the forward pass of a block keeps for its backward pass."""

    name: str  # Its name, for readers.
    bytes: int  # Bytes for one token.
    # Which ranks share it: ``token`` is whole on every tensor-parallel rank, ``residual`` is split by Megatron's
    # sequence parallelism, ``tensor`` by tensor parallelism; the bytes of ``routed`` ones are those of one token sent
    # to one expert.
    share: Share
    part: Part  # The module that it belongs to, for selective recomputation.
    _: KW_ONLY
    kept_by_selective: bool = False  # True if per-operator selective checkpointing keeps it.
    output_of: str = ""  # The linear layer whose output it is, where that matters.
    in_forward_peak: bool = True  # True if it is alive at the peak of a forward pass that saves nothing.
    last: bool = False  # True if the block's last operation made it.
    readers: tuple[str, ...] = ()  # The modules whose weights' gradients are computed from it.
    only_readers: bool = False  # True if nothing else needs it, so that it is not saved where those weights are frozen.
    made: int = 0  # Bytes for one token while it is made, with all that it is made of; 0 where that is not looked at.
    # Bytes for one token while its gradient passes through, itself counted; 0 where that is not looked at.
    undone: int = 0
    module: Module | None = None  # The module of ``checkpointing.modules`` that saves it.
    offloaded_by: str = ""  # The module of Megatron-LM's ``--offload-modules`` that moves it to the host.
    input: str = ""  # The name of the tensor that this module reads, and keeps where it is recomputed.


class Scan(NamedTuple):
    """One kernel of a layer that multiplies no weight, for one token."""

    flops: float  # Of its products.
    moved: float  # Bytes that it reads and writes.


class Scans(NamedTuple):
    """Those of a layer's forward pass and of its backward pass; both are shared by tensor parallel ranks."""

    forward: tuple[Scan, ...]
    backward: tuple[Scan, ...]


NO_SCANS = Scans((), ())
