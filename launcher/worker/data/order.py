"""The order of samples, a pure function of the seed that is the same for any number of ranks."""

from typing import NamedTuple

from launcher.base.frozen import dataclass

_ROUNDS = 4  # Feistel rounds: four give a strong permutation (Luby, Rackoff, SIAM J. Comput. 17(2), 1988).
_MASK = (1 << 64) - 1


def mixed(*numbers: int) -> int:
    """A 64-bit hash of the numbers (the finaliser of SplitMix64, Steele et al., OOPSLA 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def permuted(index: int, size: int, seed: int) -> int:
    """The image of ``index`` under a pseudo-random permutation of ``range(size)``, computed without a table.

    A Feistel network permutes the next larger power of four; an image outside ``size`` is permuted again until it is
    inside (cycle walking; Black and Rogaway, CT-RSA 2002), which takes at most four passes on average.
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
    """A position in the stream of samples: ``step`` steps have read the first ``samples``.

    A run starts at the first sample. After a resume with another batch size, ``samples`` is not ``step`` times it.
    """

    step: int = 0
    samples: int = 0

    def after(self, step: int, batch: int) -> int:
        """Samples read once a later step is done, with ``batch`` samples in each step from here on."""
        return self.samples + (step - self.step) * batch


class Stage(NamedTuple):
    """A range of samples that is read from a position in the stream on, epoch after epoch."""

    position: int
    first: int  # Its first sample.
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The assignment of samples to steps and ranks."""

    size: int  # Samples in one epoch.
    seed: int
    shuffle: bool  # False keeps the corpus's own order.
    global_batch_size: int
    micro_batch_size: int
    data_rank: int  # This rank's index among the ``data_ranks`` that read different samples.
    data_ranks: int
    start: Position = Position()  # Where the run started or resumed.
    stages: tuple[Stage, ...] = ()  # What is read from which position on; none reads all samples.

    def positions(self, step: int) -> list[list[int]]:
        """Positions in the endless stream of samples that this rank reads at a step, one list per micro-batch.

        A step has the ``global_batch_size`` positions after those of the step before, for any number of ranks.
        """
        first, together = self.start.after(step - 1, self.global_batch_size), self.micro_batch_size * self.data_ranks
        mine = first + self.data_rank * self.micro_batch_size
        starts = range(mine, mine + self.global_batch_size, together)
        return [list(range(start, start + self.micro_batch_size)) for start in starts]

    def sample(self, position: int) -> int:
        """The sample at a position in the stream; every epoch of a stage has each sample once, in its own order."""
        begun = (stage for stage in reversed(self.stages) if stage.position <= position)
        begin, first, size = next(begun, (0, 0, self.size))
        epoch, index = divmod(position - begin, size)
        if not self.shuffle:
            return first + index
        return first + permuted(index, size, mixed(self.seed, epoch, *([first] if first else [])))

    def samples(self, step: int) -> list[list[int]]:
        """The samples of this rank at a step, one list per micro-batch."""
        return [[self.sample(position) for position in micro_batch] for micro_batch in self.positions(step)]
