"""One share of the card's peak for every run."""

from __future__ import annotations

from benchmarks.speed.baselines import _run
from benchmarks.speed.row import Row

SHARE = 0.40
"""Of the peak: Llama 3 405B reports a model FLOPs utilisation of 38% to 43% (arXiv:2407.21783, table 4)."""

SOURCE = (
    "one model FLOPs utilisation for every run, 40% of the card's dense peak, as Llama 3 405B reports (38% to 43%,"
    " arXiv:2407.21783, table 4), with the FLOPs of a token as in PaLM (arXiv:2204.02311, appendix B):"
    " 6 N + 12 L a d s, attention not halved for its mask, N without the experts that a token does not meet;"
    " recomputation, layout, network and batch count for nothing"
)


def predict(row: Row) -> float | None:
    """``0.40 peak / (6 N + 12 L a d s)``; None where the card's peak is not known or only an adapter is trained."""
    if row.spec is None or row.spec.adapter.name != "none":
        return None
    peak = _run.peak(row.spec)
    if peak is None:
        return None
    model = row.spec.model
    attention = 12 * model.num_hidden_layers * model.query_size * row.spec.sequence_length
    return SHARE * peak / (6 * _run.matrix_parameters(row.spec) + attention)
