"""Questions of ``launch plan``: the layouts that are searched, and how the best of them are measured."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.actions.requests import JudgeRequest
from launcher.planner import length


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(JudgeRequest):
    """A question of layouts.

    Attributes:
        vary: Groups whose options are searched, too.
        smallest: Ask for the fewest GPUs.
        largest: Ask for the largest ``micro-batch``, ``sequence`` or ``model``.
        tokens: Of the whole training, as typed: ``1T``.
        days: The limit on its time.
        price: Money of a GPU-hour.
        save: Write the first layout as the recipe of this name.
    """

    vary: tuple[str, ...] = ()
    smallest: bool = False
    largest: str | None = None
    tokens: str | None = None
    days: float | None = None
    price: float | None = None
    save: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The words, with those that ``--tokens`` and ``--price`` are short for.

        Raises:
            ConfigErrors: They say the same twice, or a number makes no sense.
        """
        return (*self.overrides, *length.words(self.overrides, tokens=self.tokens, price=self.price))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest(PlanRequest):
    """A question of layouts, and how the best of them are measured.

    Attributes:
        measure: How many; None measures none.
        steps: Of each run.
        yes: Do not ask about the GPU-hours.
        dry_run: Show what would be started, and start nothing.
        ask: True where a person at the terminal may be asked.
    """

    measure: int | None = None
    steps: int | None = None
    yes: bool = False
    dry_run: bool = False
    ask: bool = False
