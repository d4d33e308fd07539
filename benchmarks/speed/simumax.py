"""SimuMax's own predictions of its own runs, beside ours: seconds of a step (``simumax_b200.jsonl`` of the data)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.speed.checking import checked, unseen
from benchmarks.speed.estimating import Judged
from benchmarks.speed.scoring import median
from launcher.estimate.speed.calibration import Constant

FILE = "simumax_b200.jsonl"

WORDS = """\
Seconds of a step on 8 B200, |predicted / measured - 1|, median and worst, on the runs that validated SimuMax v1.2
(calibrated on this machine). A run trains Llama 70B or DeepSeek V2, cut to fit. `check` is `launch check`, whose
constant is the median of these runs, separately for models with experts; `unseen` uses no run of Megatron-Core."""

_HEADS = "runs, rows, SimuMax, worst, check, worst, unseen, worst"


def table(items: Iterable[Judged], folder: Path) -> Iterator[str]:
    """The lines of the table; none where the file is not in the folder."""
    path = folder / FILE
    if not path.is_file():
        return
    theirs = {row["id"]: row for row in map(json.loads, path.read_text().splitlines())}
    groups = defaultdict[str, list[tuple[float, float, float]]](list)
    for item in items:
        if (row := theirs.get(item.row.name)) is not None:
            own = row["theirs"]["step_time_s"] / row["step_time_s"]
            groups[_kind(item)].append((own, _step(item, checked(item)), _step(item, unseen(item))))
    yield f"| {_HEADS.replace(', ', ' | ')} |"
    yield f"|{'---|' * (_HEADS.count(',') + 1)}"
    for kind, rows in sorted(groups.items()):
        each = [[abs(ratio - 1) for ratio in ratios] for ratios in zip(*rows, strict=True)]
        cells = [f"{100 * value:.1f}%" for errors in each for value in (median(errors) or 0.0, max(errors))]
        yield f"| {kind} | {len(rows)} | {' | '.join(cells)} |"


def _step(item: Judged, constant: Constant) -> float:
    """Predicted over measured seconds of a step."""
    return item.row.measured / (item.raw * constant.value)


def _kind(item: Judged) -> str:
    if item.row.moe:
        return "experts and latent attention"
    return "context parallel, 32k and 131k tokens" if item.row.run.parallel.context > 1 else "dense"
