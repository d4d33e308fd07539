"""The largest model whose states fit an 80 GB card, against the number of GPUs: ``python -m benchmarks.largest_model``.

Computed by the formulas of ``launcher.memory`` for AdamW in mixed precision under DDP and under FSDP2, and drawn into
``docs/largest_model.svg``. States are parameters, gradients, master weights and optimizer states at the moment when
most of them exist; activations and buffers are left out, so a real run takes a smaller model.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from benchmarks.reporting import keep, takes_no_option
from launcher import machine
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.memory.estimate import rank_terms
from launcher.memory.moments import MOMENTS
from launcher.memory.terms import Pile
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
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.2, 5.2), layout="constrained")
    axes = figure.subplots()
    titles = {"ddp": "DDP: every rank holds all states", "fsdp": "FSDP: every rank holds its share"}
    for (preset, sizes), colour in zip(figures.items(), ("#d9722e", "#27496d"), strict=True):
        billions = [size / 1e9 for size in sizes]
        axes.plot(GPUS, billions, marker="o", color=colour, linewidth=2, label=titles[preset])
        last = len(GPUS) - 1
        for place in (0, 3, 6, last) if preset == "fsdp" else (last,):
            above = (0, 9) if place < last else (-4, 9)
            axes.annotate(
                f"{billions[place]:,.0f} B", (GPUS[place], billions[place]), xytext=above,
                textcoords="offset points", ha="right" if preset == "fsdp" else "center", color=colour,
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(2, 12000)
    axes.set_xticks(GPUS, [f"{gpus:,}" for gpus in GPUS])
    axes.set_yticks([5, 10, 100, 1000, 5000], ["5", "10", "100", "1,000", "5,000"])
    axes.minorticks_off()
    axes.set_xlabel("GPUs of 80 GB")
    axes.set_ylabel("parameters, billions")
    axes.set_title("The largest model whose states fit: AdamW, bf16 mixed precision, 16 bytes a parameter", fontsize=11)
    axes.grid(color="#e3e3e3", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    with rc_context({"svg.hashsalt": "launch"}):
        figure.savefig(path, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    takes_no_option(__doc__)
    main()
