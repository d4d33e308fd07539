"""A rank of Megatron-LM alone needs what the same rank needs among the others; its document says the rest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.preflight import assess
from launcher.worker import TrainingError
from launcher.worker.rehearse import Rehearsal, megatron
from tests.support import rehearsing
from tests.support.helpers import make_spec
from tests.support.training import MOE, prepare

WITHIN = 0.01
"""Of each phase's peak and of what is alive between two steps."""

MEGATRON = ("parallel=tp", "parallel.tensor=1", "parallel.sequence=false", "zero=0", "model.num_key_value_heads=4")
RUNS = {
    "tensor_pipeline": (
        *MEGATRON,
        "parallel.tensor=2",
        "parallel.pipeline=2",
        "model.num_hidden_layers=8",
        "train.micro_batch_size=2",
    ),
    "experts": (
        *MEGATRON,
        *MOE,
        "parallel.expert=2",
        "zero=1",
        "model.max_position_embeddings=1024",
        "train.sequence_length=1024",
        "train.global_batch_size=4",
        "train.micro_batch_size=1",
    ),
}
"""Of experts with so many tokens that chance sends nearly as many to each."""


@pytest.mark.parametrize(("name", "rank"), [("tensor_pipeline", 3), ("experts", 1)])
def test_a_rank_alone_has_the_peaks_of_the_same_rank_in_the_real_run(name: str, rank: int, tmp_path: Path) -> None:
    found = rehearsing.compared(tmp_path, RUNS[name], ranks=4, which=(rank,), within=WITHIN)[rank]
    assert set(found) == {"load", "forward", "backward", "optimizer", "static"}
    assert {phase: pair for phase, pair in found.items() if rehearsing.error(*pair) > WITHIN} == {}


def test_a_rank_of_eight_is_rehearsed_without_a_file_of_a_run(tmp_path: Path) -> None:
    """Of a run that evaluates and saves, on three axes with two chunks of layers a stage."""
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
    folder = tmp_path / "run"
    spec = prepare(folder, *MEGATRON, *words, ranks=8)
    found = rehearsing.rehearse(folder, [6], backend="megatron", steps=4)[6]
    assert (found.rank, found.world, found.stage, found.layers, found.device) == (6, 8, 1, 4, "cpu")
    assert found.versions["megatron-core"]
    assert len(found.step_seconds) == 2, "two of four steps are followed"
    assert all(seconds > 0 for seconds in found.step_seconds)
    assert set(found.phases) == {"load", "forward", "backward", "optimizer", "evaluation"}
    for phase, peak in found.phases.items():
        assert peak.piles is not None
        assert sum(peak.piles.values()) == peak.allocated_bytes, phase
        assert phase == "load" or peak.piles["parameters"] > 0, "while it is loaded, a model moves into its buffers"
    assert found.phases["load"].allocated_bytes <= assess.estimated(spec).phases["load"], "no rank makes a whole model"
    left = {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()}
    assert not left & {"checkpoints", "metrics.jsonl", "memory.jsonl", "memory.json", "oom.json"}


def test_a_checkout_is_refused() -> None:
    spec = make_spec("parallel=tp", "backend.path=/opt/Megatron-LM", "hardware=cpu")
    with pytest.raises(
        TrainingError, match=r"with the checkout's own pretrain_gpt\.py.*: rehearse .* backend\.path=null"
    ):
        megatron.rehearse(Rehearsal(spec=spec, directory=Path("run"), rank=0, steps=3))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp_comm_overlap": True}, r"--tp-comm-overlap .* \+backend\.extra\.tp-comm-overlap=null"),
        ({"nccl_ub": True}, r"--nccl-ub .* \+backend\.extra\.nccl-ub=null"),
        ({"use_sharp": True}, r"--use-sharp .* \+backend\.extra\.use-sharp=null"),
        (
            {"num_experts": 4, "moe_token_dispatcher_type": "flex"},
            r"--moe-token-dispatcher-type=flex .* \+backend\.extra\.moe-token-dispatcher-type=alltoall",
        ),
    ],
)
def test_arguments_that_need_the_other_ranks_are_refused_with_a_way_out(given: dict[str, object], said: str) -> None:
    with pytest.raises(TrainingError, match=said):
        megatron.refuse(SimpleNamespace(**given))
    megatron.refuse(SimpleNamespace(num_experts=4, moe_token_dispatcher_type="alltoall", use_sharp=False))
