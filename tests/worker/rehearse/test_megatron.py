"""A rank of Megatron-LM alone needs what the same rank needs among the others; its document says the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_a_rank_of_eight_is_rehearsed_without_a_file_of_a_run(tmp_path: Path) -> None:
    """Of a run that evaluates, on two axes with two chunks of layers a stage."""
    words = (
        "parallel.pipeline=2",
        "parallel.virtual_pipeline=2",
        "parallel.schedule=interleaved",
        "parallel.tensor=2",
        "parallel.sequence=true",
        "zero=1",
        "model.num_hidden_layers=4",
        "train.micro_batch_size=2",
        "train.eval_every=10",
        "save.every=1",
        "save.last=true",
    )
    found = rehearsals.rehearse(tmp_path / "run", *MEGATRON, *words, ranks=8, rank=6, steps=4)
    assert (found.rank, found.world, found.stage, found.layers, found.device) == (6, 8, 1, 4, "cpu")
    assert found.versions["megatron-core"]
    assert len(found.step_seconds) == 2, "two of four steps are followed"
    assert all(seconds > 0 for seconds in found.step_seconds)
    assert found.static_bytes
    assert max(peak.allocated_bytes for peak in found.phases.values()) > found.static_bytes
    left = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert not [path for path in left if path.startswith(("checkpoints", "metrics.jsonl", "memory.json"))]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("backend.path=/opt/Megatron-LM",), "backend.path=/opt/Megatron-LM trains by the checkout's own"),
        (("zero=1", "+backend.extra.use-sharp=true"), "--use-sharp cannot be rehearsed by one rank alone"),
        (
            (*MOE, "parallel.expert=2", "+backend.extra.moe-token-dispatcher-type=flex"),
            "--moe-token-dispatcher-type=flex cannot be rehearsed by one rank alone",
        ),
    ],
)
def test_a_run_that_needs_its_other_ranks_is_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    content = rehearsals.document(tmp_path / "run", *MEGATRON, *words, ranks=2, rank=0)
    assert said in content["error"]
    assert content["error"].count("=null") + content["error"].count("=alltoall") == 1, "a way out is named"
