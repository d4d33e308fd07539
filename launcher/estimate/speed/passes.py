"""Seconds of one pass of a part of the model over one micro-batch, split by cause."""

from operator import add
from typing import NamedTuple


class Pass(NamedTuple):
    """One pass, or several one after the other."""

    products: float = 0.0  # Seconds of matrix products, grouped ones included.
    product_flops: float = 0.0  # Their FLOPs.
    attention: float = 0.0  # Seconds of attention.
    attention_flops: float = 0.0  # Its FLOPs; half of all under a causal mask.
    moved: float = 0.0  # Bytes of memory that everything else reads and writes.
    memory: float = 0.0  # Seconds of these reads and writes.
    loss: float = 0.0  # Seconds of the loss over the vocabulary, without its products.
    tensor: float = 0.0  # Seconds of collectives among tensor parallel ranks.
    tensor_bytes: float = 0.0  # Their bytes.
    context: float = 0.0  # Seconds of communication among the ranks of one sequence, beyond what attention hides.
    context_bytes: float = 0.0  # Its bytes.
    expert: float = 0.0  # Seconds of the exchange of tokens with experts.
    expert_bytes: float = 0.0  # Its bytes.
    launches: float = 0.0  # Kernels that the host launches.

    def plus(self, other: "Pass") -> "Pass":
        """Return both passes, one after the other."""
        return Pass(*map(add, self, other))

    def times(self, count: float) -> "Pass":
        """Return ``count`` such passes, one after the other."""
        return Pass(*[value * count for value in self])

    @property
    def compute(self) -> float:
        """Seconds of kernels that compute."""
        return self.products + self.attention + self.memory + self.loss

    @property
    def traffic(self) -> float:
        """Seconds of communication in between, which the next product waits for."""
        return self.tensor + self.context + self.expert

    @property
    def gpu(self) -> float:
        """Seconds on the GPU."""
        return self.compute + self.traffic

    def seconds(self, launch_seconds: float, beside: float = 0.0) -> float:
        """Seconds of the pass: the GPU's, or the host's to launch its kernels if that takes longer."""
        return max(self.gpu, self.launches * launch_seconds + beside)


NOTHING = Pass()
