"""Seconds of one pass of a part of the model over one micro-batch, by what they go to."""

from operator import add
from typing import NamedTuple


class Pass(NamedTuple):
    """One pass, or several one after the other."""

    products: float = 0.0  # Seconds of matrix products, and of grouped ones.
    product_flops: float = 0.0  # Their FLOPs.
    attention: float = 0.0  # Seconds of attention.
    attention_flops: float = 0.0  # Its FLOPs; of a causal mask half of all.
    moved: float = 0.0  # Bytes of memory that everything else reads and writes.
    memory: float = 0.0  # Its seconds.
    loss: float = 0.0  # Seconds of the loss over the vocabulary, its products left out.
    tensor: float = 0.0  # Seconds of collectives among tensor parallel ranks.
    tensor_bytes: float = 0.0  # Their bytes.
    context: float = 0.0  # Seconds of traffic among the ranks of one sequence, beyond what attention hides.
    context_bytes: float = 0.0  # Its bytes.
    expert: float = 0.0  # Seconds of the exchange of tokens with experts.
    expert_bytes: float = 0.0  # Its bytes.
    launches: float = 0.0  # Kernels that the host starts.

    def plus(self, other: "Pass") -> "Pass":
        """Both, one after the other."""
        return Pass(*map(add, self, other))

    def times(self, count: float) -> "Pass":
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
        """Seconds until it is done: the GPU's, or the host's to start its kernels where those are more."""
        return max(self.gpu, self.launches * launch_seconds + beside)


NOTHING = Pass()
