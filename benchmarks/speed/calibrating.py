"""The constants of the package: measured over predicted speed, for a framework and GPU, and the residuals around it.

Fitted on the rows that count (dense, not soft, pretraining) and on nanotron's sound ones; where a framework has fewer
than five of these, on its soft and fine-tuning ones too. None rests on rows whose licence forbids it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from benchmarks.speed.estimating import Judged
from benchmarks.speed.families import Family, not_counted
from launcher.estimate.speed import calibration
from launcher.rundir.provenance import versions

NOT_OURS = frozenset({"aleph"})
"""Sources whose licence forbids shipping what is made from them: Aleph Alpha, CC BY-NC-SA."""

SHARED = frozenset({"bigsci", "bigscience_logs"})
"""Sources of which equal runs differ by 40%, on a shared network."""

_BAND = (0.05, 0.95)

_WHAT = (
    "measured / predicted tokens a second: the median of the runs of a framework on a GPU (pairs), of a framework on"
    " any, and of all frameworks' constants (all); low and high: quantiles 0.05 and 0.95 of measured / corrected"
    " prediction, of the framework's own runs with its constants, or of all runs with the constant of all; experts: the"
    " same of runs of models with experts"
)


def write(found: Sequence[Family]) -> None:
    """Write ``calibration.json`` of the package."""
    calibration.CALIBRATION.write_text(json.dumps(content(found), indent=1) + "\n")
    calibration.constant.cache_clear()
    calibration._calibration.cache_clear()


def again(family: Family) -> Family:
    """The family with the constants that the package has now."""

    def corrected(item: Judged) -> Judged:
        factor = calibration.constant(item.row.framework, item.row.gpu, experts=item.row.moe)
        return replace(item, predicted=item.raw * factor.value, whose=factor.whose)

    return replace(family, items=tuple(map(corrected, family.items)))


def fitted(found: Iterable[Family]) -> list[Judged]:
    """The rows on which constants may rest."""
    ours = [item for family in found for item in family.items if _may_serve(item)]
    counted = Tally(item.row.framework for item in ours if not_counted(item.row) is None)
    return [
        item for item in ours if not_counted(item.row) is None or counted[item.row.framework] < calibration.LEAST_ROWS
    ]


def _may_serve(item: Judged) -> bool:
    row = item.row
    return row.family not in NOT_OURS | SHARED and not row.moe and not {"unsound", "512 GPUs"} & row.flags


def _with_experts(found: Iterable[Family]) -> list[Judged]:
    """The pretraining runs of models with experts."""
    rows = [item for family in found for item in family.items if item.row.moe and item.row.task == "pretrain"]
    return [item for item in rows if not item.row.soft and item.row.family not in NOT_OURS | SHARED]


def _framework(item: Judged) -> str:
    return item.row.framework


def content(found: Iterable[Family]) -> dict[str, object]:
    """The file's content from the rows that it may rest on."""
    found = list(found)
    items = fitted(found)
    every = statistics.median(map(_middle, _grouped(items, _framework).values()))
    return {
        "what": _WHAT,
        "command": "python -m benchmarks.speed --data DIR --write-calibration",
        "date": time.strftime("%Y-%m-%d"),
        "commit": versions()["git"],
        **_tables(items),
        "all": _constant("all frameworks", every, _residuals(items, every), len(items)),
        "experts": _tables(_with_experts(found), of=", models with experts"),
    }


def _tables(items: Sequence[Judged], of: str = "") -> dict[str, object]:
    """The constants of pairs of a framework and a GPU, and of frameworks on any."""
    pairs = _grouped(items, lambda item: f"{item.row.framework} on {item.row.gpu}")
    pairs = {name: rows for name, rows in pairs.items() if len(rows) >= calibration.LEAST_ROWS}
    frameworks = _grouped(items, _framework)
    own = {name: _own_residuals(rows, pairs) for name, rows in frameworks.items()}
    return {
        "pairs": {
            name: _constant(f"{name}{of}", _middle(rows), own[rows[0].row.framework], len(rows))
            for name, rows in pairs.items()
        },
        "frameworks": {
            name: _constant(f"{name} on any GPU{of}", _middle(rows), _residuals(rows, _middle(rows)), len(rows))
            for name, rows in frameworks.items()
        },
    }


def _constant(whose: str, value: float, residuals: Sequence[float], rows: int) -> dict[str, object]:
    ordered, last = sorted(residuals), len(residuals) - 1
    low, high = (round(ordered[round(share * last)], 4) for share in _BAND)
    return {"constant": round(value, 4), "low": min(low, 1.0), "high": max(high, 1.0), "rows": rows, "whose": whose}


def _own_residuals(rows: Sequence[Judged], pairs: Mapping[str, Sequence[Judged]]) -> list[float]:
    """Measured over corrected prediction, each row with its pair's constant, else the framework's."""
    found = []
    for item in rows:
        pair = pairs.get(f"{item.row.framework} on {item.row.gpu}", rows)
        found += _residuals([item], _middle(pair))
    return found


def _residuals(rows: Iterable[Judged], value: float) -> list[float]:
    return [_ratio(item) / value for item in rows]


def _middle(rows: Iterable[Judged]) -> float:
    return statistics.median(map(_ratio, rows))


def _ratio(item: Judged) -> float:
    return item.row.measured / item.raw


def _grouped(items: Iterable[Judged], key: Callable[[Judged], str]) -> dict[str, list[Judged]]:
    groups = defaultdict[str, list[Judged]](list)
    for item in items:
        groups[key(item)].append(item)
    return dict(sorted(groups.items()))
