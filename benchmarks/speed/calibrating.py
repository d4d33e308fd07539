"""The constants of the package: measured over predicted speed, for a framework and GPU, and the residuals around it.

Fitted on the rows that count (dense, not soft, pretraining) and on nanotron's sound ones; where a framework has fewer
than five of these, on its soft and fine-tuning ones too. None rests on rows whose licence forbids it.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.speed.anchoring import by_one_node
from benchmarks.speed.estimating import Judged, constant_of
from benchmarks.speed.families import Family, not_counted
from launcher.base import files
from launcher.estimate.speed import calibration
from launcher.rundir.provenance import versions

NOT_OURS = frozenset({"aleph"})
"""Sources whose licence forbids shipping what is made from them: Aleph Alpha, CC BY-NC-SA."""

SHARED = frozenset({"bigsci", "bigscience_logs"})
"""Sources of which equal runs differ by 40%, on a shared network."""

_BAND = (0.05, 0.95)

_MODELS = 3
"""Models that the width of all frameworks counts as beside a framework's own: of fewer its own runs say little."""

_POINTS = 20
"""Order statistics by which each pair or framework is in a band over them, however many runs it has."""

_WHAT = (
    "measured / predicted tokens a second: the median of the runs of a framework on a GPU (pairs), of a framework on"
    " any, and of all frameworks' constants (all); low and high: quantiles 0.05 and 0.95 of measured speed over what"
    " is predicted without the runs of the same model, of runs and of models, three models of all frameworks counted"
    " in, uncertain runs too; elsewhere: over what is predicted without a pair, and all: without a framework: the"
    " conformal quantiles 0.05 of all pairs', or of all sources' frameworks', low ends, and 0.95 of their high ends;"
    " a framework of fewer than three models reaches as far as elsewhere, and experts no less far than other models;"
    " anchored: of runs on several nodes over what one of one node says of them, of the same layout or of others,"
    " each source with one vote; experts: the same of runs of models with experts"
)


def write(found: Sequence[Family]) -> None:
    """Write ``calibration.json`` of the package; its day and commit stay where no constant moved."""
    old, new = calibration.shipped(), content(found)
    if list(_constants(old)) == list(_constants(new)):
        new |= {name: old[name] for name in ("date", "commit")}
    calibration.CALIBRATION.write_text(json.dumps(new, indent=1) + "\n")
    calibration.constant.cache_clear()
    files.own_json.cache_clear()


def _constants(tables: Mapping[str, Any]) -> Iterator[object]:
    for part in (tables, tables["experts"]):
        for kind in ("pairs", "frameworks"):
            yield {name: row["constant"] for name, row in part[kind].items()}
    yield tables["all"]["constant"]


def again(family: Family) -> Family:
    """The family judged again with the package's current constants."""

    def corrected(item: Judged) -> Judged:
        factor = constant_of(item)
        return replace(item, predicted=item.raw * factor.value, constant=factor)

    return replace(family, items=tuple(map(corrected, family.items)))


def fitted(found: Iterable[Family]) -> list[Judged]:
    """The rows that constants may be fitted to."""
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
    return [item for item in _sound(found, experts=True) if item.row.task == "pretrain" and not item.row.soft]


def _sound(found: Iterable[Family], *, experts: bool) -> list[Judged]:
    """The rows that error bands are computed from: all usable ones, also uncertain or unexplained slow ones."""
    rows = [item for family in found for item in family.items if item.row.moe == experts]
    return [item for item in rows if item.row.family not in NOT_OURS | SHARED and "unsound" not in item.row.flags]


def content(found: Iterable[Family]) -> dict[str, Any]:
    """The file's content, computed from these rows."""
    found = list(found)
    items = fitted(found)
    return {
        "what": _WHAT,
        "command": "python -m benchmarks.speed --data DIR --write-calibration",
        "date": time.strftime("%Y-%m-%d"),
        "commit": versions()["git"],
        **tables(found),
        "anchored": {
            name: _band(_points(_anchored(items, alike=alike))) for name, alike in (("same", True), ("others", False))
        },
    }


def tables(found: Sequence[Family]) -> dict[str, Any]:
    """The fitted constants and bands, as ``calibration.json`` has them (:func:`calibration.chosen` takes one)."""
    items = fitted(found)
    dense = _tables(items, _sound(found, experts=False))
    experts = _tables(_with_experts(found), _sound(found, experts=True), ", models with experts", dense["elsewhere"])
    every = {
        "constant": round(_of_all(items), 4),
        **_band_of_bands(_of_new_stacks(found)),
        "rows": len(items),
        "whose": "all frameworks",
    }
    return {**dense, "all": every, "experts": experts}


def _of_all(items: Sequence[Judged]) -> float:
    """The median of the frameworks' constants; 1 without any measurement."""
    groups = [rows for rows in _grouped(items, _framework).values() if len(rows) >= calibration.LEAST_ROWS]
    return statistics.median(map(_middle, groups)) if groups else 1.0


def _of_new_stacks(found: Iterable[Family]) -> Iterator[list[float]]:
    """Measured over predicted speed of each source's runs of a framework, uncertain ones too, by all other frameworks.

    A framework that nobody has measured may be as far off as any of these.
    """
    items = [item for family in found for item in family.items if _may_serve(item)]
    for (_, name), rows in _grouped(items, lambda item: (item.row.family, item.row.framework)).items():
        if len(rows) >= calibration.LEAST_ROWS:
            yield _residuals(rows, _of_all([item for item in items if item.row.framework != name]))


def _anchored(items: Iterable[Judged], *, alike: bool) -> Iterator[list[float]]:
    """Measured over predicted speed of each source's runs on several nodes, by one of one node."""
    for rows in _grouped(by_one_node(items, alike=alike), lambda item: item.row.family).values():
        yield [item.row.measured / item.predicted for item in rows]


def _tables(
    items: Sequence[Judged], sound: Sequence[Judged], of: str = "", least: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Constants of framework-GPU pairs and of frameworks, and the bands for everything else.

    Args:
        items: The runs of the constants.
        sound: Those of the bands of frameworks.
        of: The kind of models.
        least: The band of models without experts elsewhere, from which that of these is no less wide.
    """
    pairs = {name: rows for name, rows in _grouped(items, _pair).items() if len(rows) >= calibration.LEAST_ROWS}
    frameworks, all_sound = _grouped(items, _framework), _grouped(sound, _framework)
    unseen = {name: _of_new_models(rows, all_sound[name]) for name, rows in frameworks.items()}
    wide = _widths([each for each in unseen.values() if len(each) >= _MODELS])
    bands = {name: _blended(rows, unseen[name], wide) for name, rows in frameworks.items()}
    tables: dict[str, Any] = {
        "of": of,
        "pairs": {
            name: {
                **_entry(f"{name}{of}", rows, bands[_framework(rows[0])]),
                "generation": rows[0].row.card.generation,
            }
            for name, rows in pairs.items()
        },
        "frameworks": {name: _entry(f"{name} on any GPU{of}", rows, bands[name]) for name, rows in frameworks.items()},
    }
    elsewhere = _joined(_band_of_bands(_by_others(tables, name, rows) for name, rows in pairs.items()), least)
    for name, rows in frameworks.items():
        if len(set(map(model_of, rows))) < _MODELS:
            own = [tables["pairs"][pair] for pair in {*map(_pair, rows)} & {*pairs}]
            for row in (tables["frameworks"][name], *own):
                row |= {**_joined(row, elsewhere), "band_of": "others"}
    return {**tables, "elsewhere": elsewhere}


def _joined(one: Mapping[str, float], other: Mapping[str, float] | None) -> dict[str, float]:
    """The union of two bands."""
    both = [one] if other is None else [one, other]
    return {"low": min(band["low"] for band in both), "high": max(band["high"] for band in both)}


def _entry(whose: str, rows: Sequence[Judged], band: Mapping[str, float]) -> dict[str, object]:
    certain = any(not_counted(item.row) is None for item in rows) or rows[0].row.moe
    return {"constant": round(_middle(rows), 4), **band, "rows": len(rows), "whose": whose, "certain": certain}


def _by_others(tables: Mapping[str, Any], name: str, rows: Sequence[Judged]) -> list[float]:
    """Measured over predicted speed of a pair by the constant that it would have if nobody had measured it."""
    framework, card, others = _framework(rows[0]), rows[0].row.card, dict(tables["pairs"])
    del others[name]
    frameworks = {one: row for one, row in tables["frameworks"].items() if one != framework}
    backend = rows[0].row.backend
    related = backend.executes.related if backend is not None else ()
    every = statistics.median(row["constant"] for row in others.values()) if others else _middle(rows)
    rest = {"pairs": others, "frameworks": frameworks, "all": {"constant": every, "low": 1, "high": 1, "rows": 1}}
    rest["all"]["whose"] = ""
    return _residuals(rows, calibration.chosen(rest, framework, card, related).value)


def _of_new_models(rows: Sequence[Judged], sound: Iterable[Judged]) -> list[list[float]]:
    """Measured over predicted speed of each model's sound runs by the constant of ``rows`` of other models.

    By those of its pair, else of any; none where all rows are of one model.
    """
    pairs, found = _grouped(rows, _pair), defaultdict[str, list[float]](list)
    for (pair, model), own in _grouped(sound, lambda item: (_pair(item), model_of(item))).items():
        here = [item for item in pairs.get(pair, ()) if model_of(item) != model]
        others = here if len(here) >= calibration.LEAST_ROWS else [item for item in rows if model_of(item) != model]
        if others:
            found[model] += _residuals(own, _middle(others))
    return list(found.values())


def _widths(frameworks: Sequence[Sequence[Sequence[float]]]) -> tuple[float, float]:
    """The median widths of frameworks' bands over their models, as logarithms."""
    bands = [_quantiles(_points(models)) for models in frameworks]
    low, high = zip(*bands, strict=True) if bands else ((1.0,), (1.0,))
    return math.log(statistics.median(low)), math.log(statistics.median(high))


def _blended(rows: Sequence[Judged], each: Sequence[Sequence[float]], wide: tuple[float, float]) -> dict[str, float]:
    """The band ``w^2 = (k a^2 + m s^2) / (k + m)`` on each side, of ``m`` models ``s`` wide and of ``k`` ``a`` wide.

    No less than ``s``, which holds nine of ten runs, and of a new model with each one vote; of one model its runs.
    """
    runs = [value for values in each for value in values] or _residuals(rows, _middle(rows))
    ends = zip(_quantiles(_points(each or [runs])), _quantiles(runs, outwards=True), strict=True)
    (low, high), models = ends, len(each)

    def width(end: float, others: float) -> float:
        size = abs(math.log(end))
        return max(size, math.sqrt((_MODELS * others**2 + models * size**2) / (_MODELS + models)))

    return {
        "low": round(math.exp(-width(min(1.0, *low), wide[0])), 4),
        "high": round(math.exp(width(max(1.0, *high), wide[1])), 4),
    }


def _points(each: Iterable[Sequence[float]]) -> list[float]:
    """Equally many order statistics of each group, so that groups weigh the same."""
    found = []
    for values in each:
        ordered = sorted(values)
        found += [ordered[round((number + 0.5) / _POINTS * (len(ordered) - 1))] for number in range(_POINTS)]
    return found


def _band(values: Sequence[float]) -> dict[str, float]:
    low, high = _quantiles(values) if values else (1.0, 1.0)
    return {"low": round(min(low, 1.0), 4), "high": round(max(high, 1.0), 4)}


def _band_of_bands(each: Iterable[Sequence[float]]) -> dict[str, float]:
    """A band that holds 90% of the runs of 90% of the groups, from the ends of the groups' own bands.

    The runs of one group are alike: of all runs together nine of ten would be those of the groups that lie near. A new
    group lies beyond the ``k``-th lowest of ``n`` low ends with a probability of ``k / (n + 1)``, and so on the other
    side (split conformal prediction, Vovk et al. 2005): below 39 groups 0.05 is the outermost.
    """
    ends = [_quantiles(values) for values in each]
    if not ends:
        return _band(())
    lows, highs = (sorted(side) for side in zip(*ends, strict=True))
    place = max(1, int(_BAND[0] * (len(ends) + 1)))
    return {"low": round(min(lows[place - 1], 1.0), 4), "high": round(max(highs[-place], 1.0), 4)}


def _quantiles(values: Sequence[float], *, outwards: bool = False) -> tuple[float, float]:
    """The values at the band's ends: the nearest, or the next on the outer side."""
    ordered, (low, high) = sorted(values), (share * (len(values) - 1) for share in _BAND)
    places = (math.floor(low), math.ceil(high)) if outwards else (round(low), round(high))
    return ordered[places[0]], ordered[places[1]]


def _residuals(rows: Iterable[Judged], value: float) -> list[float]:
    return [_ratio(item) / value for item in rows]


def _middle(rows: Iterable[Judged]) -> float:
    return statistics.median(map(_ratio, rows))


def _ratio(item: Judged) -> float:
    return item.row.measured / item.raw


def _framework(item: Judged) -> str:
    return item.row.framework


def _pair(item: Judged) -> str:
    return f"{item.row.framework} on {item.row.gpu}"


def model_of(item: Judged) -> str:
    """The model of a run, by its source's name."""
    line = item.row.line
    return f"{item.row.family} {line.get('model') or line.get('model_name') or item.row.problem}"


def _grouped[K: Hashable](items: Iterable[Judged], key: Callable[[Judged], K]) -> dict[K, list[Judged]]:
    groups = defaultdict[K, list[Judged]](list)
    for item in items:
        groups[key(item)].append(item)
    return dict(sorted(groups.items()))
