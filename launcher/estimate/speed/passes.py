"""Seconds of one pass of a part of the model over one micro-batch, by what they go to."""

from __future__ import annotations

from operator import add
from typing import NamedTuple


class Pass(NamedTuple):
    """One pass, or several one after the other.

    Attributes:
        products: Seconds of matrix products, and of grouped ones.
        product_flops: Their FLOPs.
        attention: Seconds of attention.
        attention_flops: Its FLOPs; of a causal mask half of all.
        moved: Bytes of memory that everything else reads and writes.
        memory: Its seconds.
        loss: Seconds of the loss over the vocabulary, its products left out.
        tensor: Seconds of collectives among tensor parallel ranks.
        tensor_bytes: Their bytes.
        context: Seconds of traffic among the ranks of one sequence, beyond what attention hides.
        context_bytes: Its bytes.
        expert: Seconds of the exchange of tokens with experts.
        expert_bytes: Its bytes.
        launches: Kernels that the host starts.
    """

    products: float = 0.0
    product_flops: float = 0.0
    attention: float = 0.0
    attention_flops: float = 0.0
    moved: float = 0.0
    memory: float = 0.0
    loss: float = 0.0
    tensor: float = 0.0
    tensor_bytes: float = 0.0
    context: float = 0.0
    context_bytes: float = 0.0
    expert: float = 0.0
    expert_bytes: float = 0.0
    launches: float = 0.0

    def plus(self, other: Pass) -> Pass:
        """Both, one after the other."""
        return Pass(*map(add, self, other))

    def times(self, count: float) -> Pass:
        """So many of them."""
        return Pass(*[value * count for value in self])

    @property
    def compute(self) -> float:
        """Seconds of kernels that compute."""
        return self.products + self.attention + self.memory + self.loss

    @property
    def traffic(self) -> float:
        """Seconds of traffic in between, which the next product waits for."""
        return self.tensor + self.context + self.expert

    @property
    def gpu(self) -> float:
        """Seconds on the GPU."""
        return self.compute + self.traffic

    def seconds(self, launch_seconds: float, beside: float = 0.0) -> float:
        """Seconds until it is done: the GPU's, or the host's to start its kernels where those are more.

        ``beside`` is further time of the host's.
        """
        return max(self.gpu, self.launches * launch_seconds + beside)


NOTHING = Pass()
