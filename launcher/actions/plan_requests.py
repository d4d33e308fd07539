"""Questions of ``launch plan``: the layouts that are searched, and how the best of them are measured."""

from __future__ import annotations

from launcher.actions.requests import JudgeRequest
from launcher.base.frozen import dataclass
from launcher.planner import length


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(JudgeRequest):
    """A question of layouts."""

    vary: tuple[str, ...] = ()  # Groups whose options are searched, too.
    unmeasured: bool = False  # Rank modes that nothing measured backs like the others.
    smallest: bool = False  # Ask for the fewest GPUs.
    largest: str | None = None  # Ask for the largest ``micro-batch``, ``sequence`` or ``model``.
    tokens: str | None = None  # Of the whole training, as typed: ``1T``.
    days: float | None = None  # The limit on its time.
    price: float | None = None  # Money of a GPU-hour.
    save: str | None = None  # Write the first layout as the recipe of this name.

    @property
    def words(self) -> tuple[str, ...]:
        """The words, with those that ``--tokens`` and ``--price`` are short for; ConfigErrors where both are there."""
        return (*self.overrides, *length.words(self.overrides, tokens=self.tokens, price=self.price))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest(PlanRequest):
    """A question of layouts, and how the best of them are measured."""

    measure: int | None = None  # How many; None measures none.
    steps: int | None = None  # Of each run.
    yes: bool = False  # Do not ask about the GPU-hours.
    dry_run: bool = False  # Show what would be started, and start nothing.
    ask: bool = False  # True where a person at the terminal may be asked.
