"""Losses of runs: the last loss of a run, the ranking of several runs by loss, and the first losses in a lock.

Held-out losses are of equal meaning where the data are; losses of training where a step has as many tokens, too.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from launcher.base import files, typed
from launcher.base.errors import LauncherError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.rundir import contents, results
from launcher.spec.parse import parse

FIRST_LOSSES = 20  # Lines of ``metrics.jsonl`` that a lock keeps: enough to tell one run from another.

LOSSES = "losses:"  # The lock's key of them.


def add_losses(run: Path) -> None:
    """Put the first losses of a run into its lock; a lock that has them stays as it is."""
    path = run / contents.LOCK
    try:
        text, lines = files.read_text(path, files.MOST_OF_A_RECORD), files.last_lines(run / "metrics.jsonl")
    except OSError:
        return
    rows = [_row(row) for row in itertools.islice(results.training(lines), FIRST_LOSSES)]
    head, mark, _ = text.rpartition(f"{LOSSES} []\n")
    if mark and rows:
        files.write_text_atomically(path, f"{head}{LOSSES}\n" + "".join(map(as_line, rows)))


def as_line(row: Mapping[str, Any]) -> str:
    """A row as an item of YAML, which spells NaN and infinity otherwise than JSON; a run in fp16 may begin so."""
    return f"- {json.dumps(dict(row)).replace('NaN', '.nan').replace('Infinity', '.inf')}\n"


def _row(content: Mapping[str, Any]) -> JsonObject:
    norm = content.get("grad_norm")
    return {"step": content["step"], "loss": content["loss"], "grad_norm": norm if results.is_number(norm) else None}


MEAN = "mean of the last tenth of the logged steps"
"""Lines of metrics whose mean counts as the loss of a run, since single lines scatter around it."""

_NO_SAMPLES = ("workers", "preview")  # Keys of ``data`` that change no sample.


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The data of a run, and its losses."""

    data: str  # Its data and the length of its sequences, to be compared with others'.
    tokens: int | None  # Of a step; None where that is not known.
    held_out: float | None  # The last loss on held-out samples.
    training: float | None  # The mean over the last tenth of the logged steps.


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
        """The lowest loss, as a sentence begins with it."""
        return "lowest held-out loss" if self.kind == "held_out" else f"lowest loss ({MEAN})"


def trained_on(run: Path, rows: Sequence[Mapping[str, Any]]) -> Trained:
    """The data and losses of a run by its lines of metrics; a script of the user's own chooses its data by itself."""
    spec = contents.known(run, contents.SPEC)
    data, train = spec.get("data") or {}, spec.get("train") or {}
    samples = {key: value for key, value in data.items() if key not in _NO_SAMPLES}
    held_out = [row["eval_loss"] for row in rows if typed.is_number(row.get("eval_loss"))]
    return Trained(
        data=json.dumps([samples, train.get("sequence_length"), spec.get("script")], sort_keys=True, default=str),
        tokens=tokens_per_step(spec),
        held_out=held_out[-1] if held_out else None,
        training=training_loss(rows),
    )


def tokens_per_step(content: Mapping[str, Any]) -> int | None:
    """Tokens of a global batch by a recorded specification; None of a script, and of a damaged record."""
    try:
        spec = parse(json.loads(json.dumps(content)))
    except LauncherError:
        return None
    return None if spec.script is not None else spec.global_batch_size * spec.sequence_length


def ranking_basis(runs: Iterable[Trained]) -> Basis:
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


def loss(found: Sequence[JsonObject]) -> float:
    """The loss that a sampler minimises: the last on held-out samples, else the mean over the last tenth of steps."""
    held_out = [row["eval_loss"] for row in found if results.is_number(row.get("eval_loss"))]
    if held_out:
        return float(held_out[-1])
    return training_loss(found) or 0.0


def training_loss(found: Sequence[Mapping[str, Any]]) -> float | None:
    """The mean over the last tenth of the lines, at least one: single lines scatter; None where there are none."""
    last = [row["loss"] for row in found[-max(1, len(found) // 10) :]]
    return float(sum(last) / len(last)) if last else None


def closing_loss(found: Sequence[Mapping[str, Any]]) -> str:
    """The loss of training that a run has come to, as text: the mean of the last tenth of its lines."""
    count = max(1, len(found) // 10)
    return f"{training_loss(found):.4f}" + (f" (mean of the last {count} lines)" if count > 1 else "")
