"""Whether the losses of runs can be ranked, and by which: on held-out samples, of training, or by none.

Held-out losses are of equal meaning where the data are; losses of training where a step has as many tokens, too, since
a larger batch sees more of the data in as many steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from launcher.base.errors import LauncherError
from launcher.rundir import contents, results
from launcher.spec.parse import parse

MEAN = "mean of the last tenth of the logged steps"
"""What the loss of training of a run is, which single lines scatter around."""

_NO_SAMPLES = ("workers", "preview")
"""Keys of ``data`` that change no sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a run was trained on, and its losses.

    Attributes:
        data: Its data and the length of its sequences, to be compared with others'.
        tokens: Of a step; None where that is not known.
        held_out: The last loss on held-out samples.
        training: The mean over the last tenth of the logged steps.
    """

    data: str
    tokens: int | None
    held_out: float | None
    training: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The loss that runs are ranked by, or None and the reason."""

    kind: Literal["held_out", "training"] | None
    why: str = ""

    def loss(self, run: Trained | None) -> float | None:
        """That loss of a run."""
        return None if run is None or self.kind is None else getattr(run, self.kind)

    @property
    def words(self) -> str:
        """What is lowest, as a sentence begins with it."""
        return "lowest held-out loss" if self.kind == "held_out" else f"lowest loss ({MEAN})"


def trained(run: Path, rows: Sequence[Mapping[str, Any]]) -> Trained:
    """What a run of these lines of metrics was trained on; a script of the user's own decides that by itself."""
    spec = contents.known(run, contents.SPEC)
    data, train = spec.get("data") or {}, spec.get("train") or {}
    samples = {key: value for key, value in data.items() if key not in _NO_SAMPLES}
    held_out = [row["eval_loss"] for row in rows if contents.is_number(row.get("eval_loss"))]
    return Trained(
        data=json.dumps([samples, train.get("sequence_length"), spec.get("script")], sort_keys=True, default=str),
        tokens=tokens_per_step(spec),
        held_out=held_out[-1] if held_out else None,
        training=results.training_loss(rows),
    )


def tokens_per_step(content: Mapping[str, Any]) -> int | None:
    """Tokens of a global batch by a recorded specification; None of a script, and of another version's record."""
    try:
        spec = parse(json.loads(json.dumps(content)))
    except LauncherError:
        return None
    return None if spec.script is not None else spec.global_batch_size * spec.sequence_length


def basis(runs: Iterable[Trained]) -> Basis:
    """The loss that runs are ranked by, of those that have any."""
    found = [run for run in runs if run.training is not None]
    if len({run.data for run in found}) > 1:
        return Basis(kind=None, why="their data or the lengths of their sequences differ")
    if found and all(run.held_out is not None for run in found):
        return Basis(kind="held_out")
    sizes = sorted({run.tokens for run in found if run.tokens is not None})
    if len(sizes) > 1:
        way = "train.eval_every gives them losses on the same held-out samples"
        return Basis(kind=None, why=f"a step has {sizes[0]:,} to {sizes[-1]:,} tokens; {way}")
    return Basis(kind="training")
