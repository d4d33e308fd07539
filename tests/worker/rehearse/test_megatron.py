"""A rank of Megatron-LM alone needs what the same rank needs among the others; its document says the rest."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support import rehearsals
from tests.support.training import MOE

TOLERANCE = 0.01
"""Relative, of the peak of each phase. gloo's thread may keep one tensor of a collective too long in the real run."""

MEGATRON = ("parallel=tp", "parallel.tensor=1", "parallel.sequence=false", "zero=0", "model.num_key_value_heads=4")
LAYOUT = (
    *MEGATRON,
    "parallel.tensor=2",
    "parallel.pipeline=2",
    "model.num_hidden_layers=8",
    "train.micro_batch_size=2",
)
EXPERTS = (
    *MEGATRON,
    *MOE,
    "parallel.expert=2",
    "zero=1",
    "model.max_position_embeddings=1024",
    "train.sequence_length=1024",
    "train.global_batch_size=4",
    "train.micro_batch_size=1",
)
"""Enough tokens that chance sends nearly as many to each expert."""


def test_tensor_and_pipeline_ranks_alone_have_the_peaks_of_the_real_run(tmp_path: Path) -> None:
    found = list(rehearsals.peaks(tmp_path / "runs", LAYOUT, ranks=4, alone=(0, 3)))
    assert {peak.phase for peak in found} == {"load", "forward", "backward", "optimizer"}
    assert not [peak for peak in found if abs(peak.off) > TOLERANCE]


def test_an_expert_rank_alone_has_the_peaks_of_the_real_run(tmp_path: Path) -> None:
    found = list(rehearsals.peaks(tmp_path / "runs", EXPERTS, ranks=4, alone=(1,)))
    assert {peak.phase for peak in found} == {"load", "forward", "backward", "optimizer"}
    assert not [peak for peak in found if abs(peak.off) > TOLERANCE]
