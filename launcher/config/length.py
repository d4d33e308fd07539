"""The length of a run: its steps, or the tokens that they follow from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from launcher.spec.training import DEFAULT_STEPS

STEPS, TOKENS = LENGTHS = "train.steps", "train.tokens"


def displaced(words: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Keys that weaker words, of a recipe or of a run as it was, no longer say where these words type a length."""
    typed = any(key in LENGTHS and value != "null" for key, value in words)
    return frozenset(LENGTHS) if typed else frozenset()


def resolve(train: Mapping[str, Any], typed: Collection[str]) -> dict[str, Any]:
    """Let the length that is typed take the place of the other one, and write down the default where there is none.

    Args:
        train: The keys of ``train``; they are left as they are.
        typed: The keys that stand above the others: those of the command line and its recipe over files, those of a
            resume over a recorded run. Where both lengths are among them, both stay, which is an error
            (``launcher.rules.batch``).
    """
    steps, tokens = train["steps"], train.get("tokens")
    if steps is None and tokens is None:
        return {**train, "steps": DEFAULT_STEPS}
    if steps is not None and tokens is not None and (STEPS in typed) != (TOKENS in typed):
        return {**train, **({"tokens": None} if STEPS in typed else {"steps": None})}
    return dict(train)
