"""The keys of ``data``: the source of the tokens and their tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from launcher.spec.values import Natural, Probability


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """The source of tokens. ``path`` may hold globs and ``{stdlib}``, the folder of Python's own sources."""

    source: Literal["synthetic", "text", "chat", "tokens", "huggingface"]
    path: str | None
    tokenizer: str
    split: str
    column: str
    token_dtype: Literal["uint16", "uint32"]
    eval_fraction: Probability
    workers: Natural
    shuffle: bool
    template: str | None
    train_on: Literal["assistant", "last", "all"]
    preview: Natural
    on_bad_row: Literal["error", "skip"] = "error"

    @property
    def marked(self) -> bool:
        """True if some tokens are not trained as labels."""
        return self.source == "chat"
