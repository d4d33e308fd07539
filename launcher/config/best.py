"""The word ``plan=best``: it stands for the words of the layout that ``launch plan`` puts first.

It is no setting, and is taken out of a command line before anything composes it; where nobody does, it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.base.errors import ConfigError, ConfigErrors

KEY = "plan"
WORD = f"{KEY}=best"


def taken_out(texts: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """The words without ``plan=best``, and True if it was there.

    Raises:
        ConfigErrors: ``plan`` has another value.
    """
    rest = tuple(text for text in texts if text.partition("=")[0] != KEY or "=" not in text)
    if len(rest) < len(texts) and (wrong := [text for text in texts if text not in (*rest, WORD)]):
        raise ConfigErrors(refused(text.partition("=")[2]) for text in wrong)
    return rest, len(rest) < len(texts)


def refused(value: str) -> ConfigError:
    """The error of ``plan=VALUE`` where it means nothing."""
    if value == "best":
        rule = "it stands for a layout in check, show, run and -m: here type the words that `launch plan` prints"
        return ConfigError(KEY, value, rule, ["launch plan"])
    rule = "its one value is best, the layout that `launch plan` puts first; a layout of your own is words of its own"
    return ConfigError(KEY, value, rule, [WORD, "parallel=fsdp"])
