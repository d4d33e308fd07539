"""The training loop's own small rules."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")

from launcher.worker.loop import vocabulary_sizes
from tests.support.helpers import make_spec


def test_sizes_of_logits_are_those_that_nothing_else_has() -> None:
    tensor = ("parallel=fsdp", "parallel.tensor=2", "cluster.gpus_per_node=2")
    assert vocabulary_sizes(make_spec("model=tiny")) == frozenset(), "its hidden states are as wide as its vocabulary"
    assert vocabulary_sizes(make_spec("model=tiny", "model.vocab_size=1001")) == {1001}
    assert vocabulary_sizes(make_spec("model=tiny", "model.vocab_size=1001", *tensor)) == {1001, 501}
    assert vocabulary_sizes(make_spec("model=tiny", "model.vocab_size=1376", *tensor)) == frozenset(), (
        "2 * 688, and 688"
    )
    assert vocabulary_sizes(make_spec("model=tiny", "model.vocab_size=640", *tensor)) == {640, 320}
    assert vocabulary_sizes(make_spec("model=llama3_8b", *tensor)) == {128256, 64128}
