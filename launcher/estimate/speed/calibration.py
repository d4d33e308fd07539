"""Measured over predicted speed by framework and GPU (``python -m benchmarks.speed --write-calibration`` writes it)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.estimate.speed.card import Card

CALIBRATION = Path(__file__).with_name("calibration.json")

type Tables = Mapping[str, Any]  # Tables of pairs and frameworks, for one kind of model or for both.

LEAST_ROWS = 5  # Fewest measured runs for a constant: fewer may be only one or two configurations.


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The calibration constant that a speed prediction was multiplied by: measured over predicted speed."""

    value: float  # Measured / predicted tokens per second, the median of ``rows`` runs.
    low: float  # The lower end of the error band of the corrected prediction, as a factor.
    high: float  # The upper end.
    rows: int  # The number of measured runs behind it; 0 where none was used.
    whose: str  # The framework and GPU, or the wider group, of these runs.
    # Number of frameworks whose constants it is the median of; 0 where it comes from one pair, or from all.
    votes: int = 0
    # True if they are the user's own runs on this cluster, and not those of the shipped calibration.
    here: bool = False
    frameworks: tuple[str, ...] = ()  # The frameworks of these runs; empty where they are of all.
    # The runs behind the band: these; other runs, by how far they lie from their own predictions; those with experts.
    band_of: Literal["same", "others", "experts"] = "same"


UNCALIBRATED = Constant(value=1.0, low=1.0, high=1.0, rows=0, whose="no measured run")


@cache
def constant(framework: str, card: Card, related: tuple[str, ...] = (), *, experts: bool = False) -> Constant:
    """The constant of a framework on a GPU from the shipped calibration (:func:`chosen`)."""
    return chosen(shipped(), framework, card, related, experts=experts)


def chosen(
    tables: Tables, framework: str, card: Card, related: tuple[str, ...] = (), *, experts: bool = False
) -> Constant:
    """The constant of a framework's own certain runs; else the median of votes; else that of all frameworks.

    Its own runs are those on the GPU, else those on others of its generation; the framework and each related one has a
    vote. A constant taken from another GPU, or for a framework without measurements, has the error band of such
    predictions. A model with experts takes the constants of such models' runs, if these frameworks have enough.
    """
    names, of_experts = (framework, *related), tables.get("experts", {})
    if experts and (found := _of(of_experts, names, card)) is not None:
        return found
    found = _of(tables, names, card)
    if found is not None and _vote(tables, framework, card) is None and "all" in tables:
        found = replace(found, low=tables["all"]["low"], high=tables["all"]["high"])
    if found is None:
        found = replace(_read(tables["all"]), band_of="others") if "all" in tables else UNCALIBRATED
    return _without_experts(found, of_experts) if experts and found.rows else found


def _of(tables: Tables, names: tuple[str, ...], card: Card) -> Constant | None:
    """The constant from the tables of one kind of model; None where these frameworks have too few measured runs."""
    own, pair = _vote(tables, names[0], card), tables.get("pairs", {}).get(f"{names[0]} on {card.name}")
    if own is not None and own.near and (own.certain or len(names) == 1):
        here = pair is not None and pair["rows"] >= LEAST_ROWS
        return replace(_read(pair), frameworks=names[:1]) if here else _middle([own], tables)
    votes = [vote for name in names if (vote := _vote(tables, name, card)) is not None]
    return _middle(votes, tables) if votes else None


_FAR = "other GPUs"


class _Vote(NamedTuple):
    """The measured constant of one framework."""

    constant: float  # The median of its pairs.
    rows: int  # The number of their runs.
    name: str  # The framework.
    where: str  # The requested GPU, or a description of the others that were measured.
    near: bool  # True if they were measured on the requested GPU or its generation.
    certain: bool  # True if the layouts of all these runs are stated in full.


def _vote(tables: Tables, name: str, card: Card) -> _Vote | None:
    from statistics import median  # Late, because it takes a while to import.

    pairs = {pair: row for pair, row in tables.get("pairs", {}).items() if pair.startswith(f"{name} on ")}
    generation = card.generation
    for where, found in (
        (card.name, _enough([pairs.get(f"{name} on {card.name}")])),
        ("GPUs of its generation", _enough(row for row in pairs.values() if generation == row.get("generation", -1))),
        (_FAR, _enough([tables.get("frameworks", {}).get(name)]) or _enough(pairs.values())),
    ):
        if found:
            rows = sum(row["rows"] for row in found)
            certain = all(row.get("certain", True) for row in found)
            return _Vote(median(row["constant"] for row in found), rows, name, where, where != _FAR, certain)
    return None


def _enough(rows: Iterable[JsonObject | None]) -> list[JsonObject]:
    return [row for row in rows if row is not None and row["rows"] >= LEAST_ROWS]


def _middle(votes: Sequence[_Vote], tables: Tables) -> Constant:
    """The median of some frameworks' constants."""
    from statistics import median  # Late, as above.

    value, band = median(vote.constant for vote in votes), tables.get("elsewhere", {"low": 1.0, "high": 1.0})
    return Constant(
        value=value,
        low=band["low"],
        high=band["high"],
        rows=sum(vote.rows for vote in votes),
        votes=len(votes),
        whose=f"{', '.join(f'{vote.name} on {vote.where}' for vote in votes)}{tables.get('of', '')}",
        frameworks=tuple(vote.name for vote in votes),
        band_of="others",
    )


def _without_experts(found: Constant, experts: Tables) -> Constant:
    """The constant of other models for one with experts, with its band widened to the runs of models with experts."""
    rows = _enough(experts.get("frameworks", {}).values())
    return replace(
        found,
        low=min([found.low, *(row["constant"] * row["low"] / found.value for row in rows)]),
        high=max([found.high, *(row["constant"] * row["high"] / found.value for row in rows)]),
        whose=f"{found.whose}, models without experts",
        band_of="experts",
    )


@cache
def version() -> str | None:
    """The date and commit of the shipped figures, for which a ratio of measured and predicted speed holds."""
    content = shipped()
    commit = (content.get("commit") or {}).get("commit")
    return f"{content['date']} {commit[:7]}" if commit and "date" in content else None


def shipped() -> Tables:
    """The content of ``calibration.json``."""
    content: Tables = files.own_json(CALIBRATION)
    return content


def _read(row: JsonObject) -> Constant:
    band = {name: row[name] for name in ("low", "high", "rows", "whose", "band_of") if name in row}
    return Constant(value=row["constant"], **band)
