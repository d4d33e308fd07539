"""The largest model whose states fit an 80 GB card, against the number of GPUs: ``python -m benchmarks.largest_model``.

Computed by the formulas of ``launcher.estimate.memory`` for AdamW in mixed precision under DDP and under FSDP2, and
drawn into ``docs/largest_model.svg``. States are parameters, gradients, master weights and optimizer states when most
of them exist. Activations and buffers are left out, so a real run fits a smaller model.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from benchmarks.reporting import keep, takes_no_option
from launcher.base import machine
from launcher.charts import library
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.estimate.memory.estimate import rank_terms
from launcher.estimate.memory.moments import MOMENTS
from launcher.estimate.memory.terms import Pile
from launcher.preflight import assess
from launcher.spec import RunSpec

CARD_BYTES = 80 * 10**9
"""Bytes of a card sold as 80 GB; drivers report a little more (``conf/hardware``)."""

GPUS = tuple(2**power for power in range(11))
STATES: frozenset[Pile] = frozenset(("parameters", "gradients", "master_weights", "optimizer_states"))
FIGURE = Path(__file__).parents[1] / "docs" / "largest_model.svg"

# 1,024 ranks divide every dimension, so that no shard is padded and a byte count is proportional to the parameters.
MODEL = ("model=7b", "model.intermediate_size=16384", "model.vocab_size=32768")


def main() -> None:
    """Compute, keep and draw."""
    figures = largest()
    keep(
        "largest_model",
        "python -m benchmarks.largest_model",
        {"card_bytes": CARD_BYTES, "gpus": list(GPUS), "parameters": figures},
    )
    draw(figures, FIGURE)


def largest() -> dict[str, list[int]]:
    """Parameters of the largest model for each number of ``GPUS``, by preset."""
    return {
        preset: [int(CARD_BYTES / bytes_per_parameter(preset, gpus)) for gpus in GPUS] for preset in ("ddp", "fsdp")
    }


def bytes_per_parameter(preset: str, gpus: int) -> Fraction:
    """State bytes of the worst rank over the parameters of the model."""
    spec = _spec(preset, gpus)
    total = assess.estimated(spec).parameters.total
    return Fraction(max(_states(spec)), total)


def _states(spec: RunSpec) -> Iterator[int]:
    """Bytes of all states on every stage's rank at every moment."""
    for rank in rank_terms(spec, **assess.parts(spec)):
        for moment in MOMENTS:
            yield sum(term.bytes for term in rank.at(moment) if term.pile in STATES)


def _spec(preset: str, gpus: int) -> RunSpec:
    nodes, a_node = max(1, gpus // 8), min(gpus, 8)
    words = [*MODEL, f"parallel={preset}", "precision=bf16", "hardware=h100_80g"]
    words += [f"cluster.nodes={nodes}", f"cluster.gpus_per_node={a_node}"]
    return request(words, facts=machine.facts(), catalog=Catalog(folder=Path(__file__).parent)).require()


def draw(figures: dict[str, list[int]], path: Path) -> None:
    """Both curves on logarithmic axes."""
    titles = {"ddp": "DDP: every rank holds all states", "fsdp": "FSDP: every rank holds its share"}
    places = {"ddp": (len(GPUS) - 1,), "fsdp": (0, 3, 6, len(GPUS) - 1)}
    rows = [
        {
            "gpus": gpus,
            "billions": size / 1e9,
            "of": titles[preset],
            "label": f"{size / 1e9:,.0f} B" if place in places[preset] else "",
        }
        for preset, sizes in figures.items()
        for place, (gpus, size) in enumerate(zip(GPUS, sizes, strict=True))
    ]
    logarithmic = {"type": "log", "nice": False}
    x = {"field": "gpus", "title": "GPUs of 80 GB", "axis": {"values": list(GPUS), "format": ","}}
    y = {"field": "billions", "title": "parameters, billions", "scale": {**logarithmic, "domain": [2, 12_000]}}
    colours = {"domain": list(titles.values()), "range": ["#d9722e", "#27496d"]}
    of = {
        "field": "of",
        "type": "nominal",
        "title": None,
        "scale": colours,
        "legend": {"orient": "top", "labelLimit": 400},
    }
    encoding = {
        "x": {
            **x,
            "type": "quantitative",
            "scale": {**logarithmic, "base": 2, "domain": [GPUS[0], GPUS[-1]], "padding": 20},
        },
        "y": {**y, "type": "quantitative", "axis": {"values": [5, 10, 100, 1000, 5000], "format": ","}},
        "color": of,
    }
    label = {"text": {"field": "label", "type": "nominal"}}
    spec = {
        "title": "The largest model whose states fit: AdamW, bf16 mixed precision, 16 bytes a parameter",
        "data": {"values": rows},
        "width": 620,
        "height": 380,
        "layer": [
            {"mark": {"type": "line", "point": {"size": 50}, "strokeWidth": 2}, "encoding": encoding},
            {"mark": {"type": "text", "align": "right", "dx": -4, "dy": -10}, "encoding": {**encoding, **label}},
        ],
    }
    path.write_bytes(library.picture(spec, "svg" if path.suffix == ".svg" else "png"))


if __name__ == "__main__":
    takes_no_option(__doc__)
    main()
