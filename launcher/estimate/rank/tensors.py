"""The tensors of a model: its weights and the tensors that its blocks save, each with its split among ranks."""

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

    name: str  # Its name in the model's checkpoint, without the layer's prefix.
    shape: tuple[int, ...]  # Rows first, as in ``torch.nn.Linear``.
    # ``replicated`` on every tensor-parallel rank, or split over the ``tensor`` or the ``expert`` ranks.
    split: Split = "replicated"
    copies: int = 1  # Number of equal tensors: the routed experts of a layer.
    stacked: bool = False  # True if one matrix holds the rows of all copies, one below the other.
    dimension: int = 0  # The dimension that tensor parallelism splits.
    frozen: bool = False  # True if it is not trained.
    quantised: int = 0  # The bits of its codes; 0 if it is not quantised.
    whole: bool = False  # True if it is never quantised because code outside its linear layer reads it.
    outside: bool = False  # True if several blocks share it, so that it counts as outside the blocks.
    module: Module | None = None  # Its module of ``checkpointing.modules``, if its name does not tell.

    @property
    def elements(self) -> int:
        """Elements of all copies."""
        return self.copies * prod(self.shape)


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that the forward pass of a block keeps for its backward pass."""

    name: str  # A name for readers.
    bytes: int  # Bytes for one token.
    # How ranks split it: ``token`` is whole on every tensor-parallel rank, ``residual`` is split by Megatron's
    # sequence parallelism, ``tensor`` by tensor parallelism; bytes of ``routed`` ones are per token sent to one expert.
    share: Share
    part: Part  # The module that it belongs to, for selective recomputation.
    _: KW_ONLY
    kept_by_selective: bool = False  # True if per-operator selective checkpointing keeps it.
    output_of: str = ""  # The linear layer whose output it is, where that matters.
    in_forward_peak: bool = True  # True if it is alive at the peak of a forward pass that saves nothing.
    last: bool = False  # True if the block's last operation made it.
    readers: tuple[str, ...] = ()  # The modules whose weight gradients are computed from it.
    only_readers: bool = False  # True if nothing else needs it, so that it is not saved where those weights are frozen.
    made: int = 0  # Bytes per token while it is computed, with all its inputs; 0 where that instant is not counted.
    # Bytes per token while its gradient is computed, itself included; 0 where that instant is not counted.
    undone: int = 0
    module: Module | None = None  # The module of ``checkpointing.modules`` that saves it.
    offloaded_by: str = ""  # The module of Megatron-LM's ``--offload-modules`` that moves it to the host.
    input: str = ""  # The name of the tensor that its module reads, and keeps where it is recomputed.


class Scan(NamedTuple):
    """The cost per token of one kernel of a layer that multiplies no weight."""

    flops: float  # FLOPs of its products.
    moved: float  # Bytes that it reads and writes.


class Scans(NamedTuple):
    """The scan kernels of a layer's forward and backward pass, which tensor parallel ranks share."""

    forward: tuple[Scan, ...]
    backward: tuple[Scan, ...]


NO_SCANS = Scans((), ())
