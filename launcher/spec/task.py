"""The keys of ``task``: what a run trains for, and the settings of that task's loss."""

from typing import Literal

from launcher.base.frozen import dataclass
from launcher.spec.values import Count, NonNegative, Positive, Probability


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """The task. ``None`` is TRL's own default, and keys of other tasks are refused where they are set."""

    name: Literal["pretrain", "sft", "dpo", "kto", "reward", "grpo"] = "pretrain"
    beta: NonNegative | None = None  # The weight of the divergence from the reference model.
    loss: str | None = None  # The variant of the loss, by TRL's name.
    label_smoothing: Probability = 0.0  # The share of preferences taken to be flipped.
    precompute_reference: bool = False  # True: the reference model's answers are computed once, before training.
    desirable_weight: Positive = 1.0  # Weights of the two kinds of rows of KTO.
    undesirable_weight: Positive = 1.0
    center_rewards: NonNegative | None = None  # The weight that keeps the mean of rewards near zero.
    generations: Count = 8  # Answers to each prompt of GRPO.
    completion_length: Count = 256  # Tokens of an answer at most.
    temperature: Positive = 1.0  # Of sampling.
    rewards: tuple[str, ...] = ()  # Reward functions, as module.function or by TRL's names, or a reward model.
    vllm: bool = False  # True: vLLM generates, beside the training.

    @property
    def rows(self) -> tuple[str, ...]:
        """The columns that the task's rows need; none where it trains on tokens."""
        return ROWS.get(self.name, ())

    @property
    def sequences(self) -> int:
        """Sequences of one sample that pass through the model together: of a pair, both."""
        return 2 if self.name in ("dpo", "reward") else 1

    @property
    def has_reference(self) -> bool:
        """True if the loss compares with what the model was before."""
        return self.name in ("dpo", "kto") or (self.name == "grpo" and bool(self.beta))


ROWS = {
    "dpo": ("chosen", "rejected"),
    "kto": ("prompt", "completion", "label"),
    "reward": ("chosen", "rejected"),
    "grpo": ("prompt",),
}
"""Columns without which TRL's trainer of a task has nothing to train on (``trl/trainer/*_trainer.py``, 1.16).

A prompt beside ``chosen`` and ``rejected`` may be a column of its own, or what both begin with (``extract_prompt``).
"""

PRETRAIN = TaskSpec()
