"""The order of samples: pure functions of the seed, the same for every number of ranks."""

from launcher.base.frozen import dataclass

_ROUNDS = 4  # Of the Feistel network: four are a strong permutation (Luby, Rackoff, SIAM J. Comput. 17(2), 1988).
_MASK = (1 << 64) - 1


def mixed(*numbers: int) -> int:
    """64 bits that depend on all the numbers (the finaliser of SplitMix64, Steele et al., OOPSLA 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def permuted(index: int, size: int, seed: int) -> int:
    """The place of ``index`` in a pseudo-random permutation of ``range(size)``, with no table of the permutation.

    A Feistel network permutes the next larger power of four; an image outside of ``size`` is permuted again until it
    is inside (cycle walking; Black and Rogaway, CT-RSA 2002), which takes four rounds through it at most on average.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left, right = index >> half, index & low
        for turn in range(_ROUNDS):
            left, right = right, left ^ (mixed(seed, turn, right) & low)
        index = left << half | right
        if index < size:
            return index


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in the stream of samples: ``step`` steps have seen the first ``samples``.

    A run starts at the first sample. One that was resumed with another batch is not at ``step`` times its batch.
    """

    step: int = 0
    samples: int = 0

    def after(self, step: int, batch: int) -> int:
        """Samples seen once a later step is done, with ``batch`` of them in each step from here on."""
        return self.samples + (step - self.step) * batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The assignment of samples to steps and ranks."""

    size: int  # Samples of one epoch.
    seed: int
    shuffle: bool  # True for another order than the corpus's own.
    global_batch_size: int
    micro_batch_size: int
    data_rank: int  # This rank among the ``data_ranks`` that see different samples.
    data_ranks: int
    start: Position = Position()  # The place at which the run has started, or gone on.

    def positions(self, step: int) -> list[list[int]]:
        """Places in the endless stream of samples, a list a micro-batch.

        A step owns ``global_batch_size`` places, from where the step before has ended, whatever the ranks are.
        """
        first, together = self.start.after(step - 1, self.global_batch_size), self.micro_batch_size * self.data_ranks
        mine = first + self.data_rank * self.micro_batch_size
        starts = range(mine, mine + self.global_batch_size, together)
        return [list(range(start, start + self.micro_batch_size)) for start in starts]

    def sample(self, position: int) -> int:
        """The sample at a place of the stream; every epoch has each sample once, in an order of its own."""
        epoch, index = divmod(position, self.size)
        return permuted(index, self.size, mixed(self.seed, epoch)) if self.shuffle else index

    def samples(self, step: int) -> list[list[int]]:
        """The samples of this rank at a step, a list a micro-batch."""
        return [[self.sample(position) for position in micro_batch] for micro_batch in self.positions(step)]
