"""An engine's own validator: asked in a process of its own, its answers kept in the user's cache folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from launcher.base import cache
from launcher.base.package import IMPORT_FOLDER

TIMEOUT_S = 120
"""Seconds for an answer; importing the frameworks takes nearly all of them, 7 on an idle core."""


def asked(module: str, question: dict[str, Any], version: str) -> dict[str, Any] | None:
    """The answer of ``module`` to one question, from the cache where it was asked before.

    Args:
        module: A program that reads a JSON list of questions and writes one of answers.
        question: All that the answer depends on, with the version.
        version: The version of the framework that answers.

    Raises:
        RuntimeError: There is no answer, with the last line that the program said.
    """
    found: dict[str, Any] | None = cache.answer(
        "native", [module, version, question], lambda: answers(module, [question])[0]
    )
    return found


def asked_together(module: str, questions: Sequence[dict[str, Any]], version: str) -> None:
    """Have the answers of :func:`asked` to several questions kept, those to new ones from one process.

    Args:
        module: As there.
        questions: The questions.
        version: As there.

    Raises:
        RuntimeError: There is no answer, with the last line that the program said.
    """
    new = [each for each in questions if not cache.is_kept("native", [module, version, each])]
    if new:
        for each, answer in zip(new, answers(module, new), strict=True):
            cache.keep("native", [module, version, each], answer)


def answers(module: str, questions: list[dict[str, Any]], timeout_s: int = TIMEOUT_S) -> list[dict[str, Any] | None]:
    """The answers to many questions, from one process.

    Raises:
        RuntimeError: As :func:`asked`.
    """
    paths = (str(IMPORT_FOLDER), os.environ.get("PYTHONPATH", ""))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", "-m", module],
            input=json.dumps(questions),
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        found: list[dict[str, Any] | None] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no answer in {timeout_s} s") from None
    except ValueError:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1]) from None
    return found
