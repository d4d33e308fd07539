"""Memory of ranks that share a sequence: what Ulysses exchanges and saves, what goes round in ring attention."""

from __future__ import annotations

import pytest

from launcher.backends.fsdp import ring
from launcher.preflight import assess
from tests.support.estimates import ranks_of
from tests.support.helpers import make_spec

_LONG = (
    "model=tiny",
    "model.hidden_size=512",
    "model.num_attention_heads=8",
    "model.vocab_size=1024",
    "model.max_position_embeddings=8192",
    "train.sequence_length=8192",
    "hardware=h100_80g",
    "cluster.gpus_per_node=4",
    "checkpointing=full",
)


def _piles(*overrides: str) -> dict[str, tuple[int, str]]:
    estimate = assess.estimated(make_spec(*_LONG, *overrides))
    assert estimate.peak.phase == "backward"
    return {pile.pile: (pile.bytes, pile.formula) for pile in estimate.piles}


def test_four_ulysses_ranks_save_four_heads_of_keys_where_the_model_has_two() -> None:
    ulysses = ("parallel=ulysses", "parallel.ulysses=4")
    two, four = (_piles(*ulysses, f"model.num_key_value_heads={heads}") for heads in (2, 4))
    assert two["activations"] == four["activations"]


def test_a_rank_of_no_ulysses_group_saves_the_heads_of_the_model() -> None:
    ulysses = ("parallel=ulysses", "parallel.ulysses=1")
    two, four = (_piles(*ulysses, f"model.num_key_value_heads={heads}") for heads in (2, 4))
    assert four["activations"][0] - two["activations"][0] == 2 * 2 * 2 * 64 * 8192  # Keys and values, bf16, two heads.


@pytest.mark.parametrize(("ranks", "bytes_a_value"), [(2, 49), (4, 53)])
def test_ring_attention_s_backward_pass_holds_so_many_bytes_a_value_of_its_queries(
    ranks: int, bytes_a_value: int
) -> None:
    """Counted in ``_templated_ring_attention_backward``: with a head of keys for each of queries all are ``q``."""
    wide = ("parallel=fsdp_cp", f"parallel.context={ranks}", "model.num_key_value_heads=8")
    narrow = [_piles(*wide, f"model.intermediate_size={width}")["temporary"] for width in (8, 16)]
    tokens, hidden, q = 8192 // ranks, 512, 512
    # Beside it the residual's gradient; what the second norm and the copy for the projection held is freed by then.
    for (size, formula), width in zip(narrow, (8, 16), strict=True):
        assert "ring attention's backward pass" in formula
        weights = 2 * (q * hidden + 3 * hidden * width + 2 * hidden)
        assert size == tokens * (bytes_a_value * q + 2 * hidden) + weights
        model = ranks_of(make_spec(*_LONG, *wide, f"model.intermediate_size={width}"))[0].model
        (left,) = (term for term in ring.overheads(model) if term.pile == "activations")
        freed = (4 + 2 + 2) * hidden + 4 + 2 * q + 4 * 2 * width
        checkpoint = 2 * hidden
        assert left.bytes == tokens * (checkpoint + model.token_bytes(model.blocks[0].saved) - freed)
