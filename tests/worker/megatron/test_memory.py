"""Memory of Megatron's runs on CPU ranks: every phase that is measured is what the formulas say, within 2%."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.preflight.assess import estimated
from launcher.rundir import results
from tests.support import cover
from tests.support.helpers import make_spec
from tests.support.training import GPT, MOE, SMALL, train_all

TOLERANCE = 0.02

SIZES = (
    *("model.num_hidden_layers=4", "model.hidden_size=256", "model.intermediate_size=512", "model.vocab_size=2048"),
    *("train.sequence_length=256", "train.steps=2", "train.micro_batch_size=2", "train.global_batch_size=null"),
)
DATA = ("parallel=tp", "parallel.tensor=1", "parallel.sequence=false")
SEQUENCE = ("parallel=tp", "parallel.tensor=2")
EXPERTS = (*MOE, "model.moe_intermediate_size=256")
RUNS = {
    "data": (*DATA, "save.last=true"),
    "data_bf16": (*DATA, "precision=bf16", "model.qk_norm=true"),
    "sequence": (*SEQUENCE, "save.last=true"),
    "full": (*DATA, "checkpointing=full"),
    "selective": (*SEQUENCE, "checkpointing=selective"),
    "norms_of_heads": (*DATA, "model.qk_norm=true", "checkpointing=selective"),
    "experts": (*DATA, *EXPERTS),
    "experts_full": (*DATA, *EXPERTS, "checkpointing=full"),
    "gpt": (*DATA, *GPT),
    "whole_states": (*DATA, "zero=0", "save.last=true"),
    "muon": (*SEQUENCE, "train.sequence_length=32", "model.vocab_size=256", "zero=0", "optimizer=muon"),
    "muon_gpt": (*DATA, "train.sequence_length=32", "model.vocab_size=256", "zero=0", "optimizer=muon", *GPT),
    "muon_experts": (*DATA, "train.sequence_length=32", "zero=0", "optimizer=muon", *EXPERTS),
    "one_data_rank": (*SEQUENCE, "train.sequence_length=64", "model.vocab_size=256"),
    "stages": ("parallel=pp", "train.gradient_accumulation=4"),
    "fp16": (*DATA, "precision=fp16", "precision.initial_loss_scale=1024"),
}
"""In fp16 the first loss scale is one at which the steps that are measured are not skipped: those have no moments."""

CHOSEN = cover.Chosen(first=["data"], pairs=["data", "sequence", "experts_full", "gpt"])


@pytest.mark.parametrize("run", cover.marked([*RUNS], CHOSEN))
def test_every_phase_of_a_run_on_the_cpu_is_predicted(run: str, tmp_path: Path) -> None:
    """Each run in ranks of its own: of those before it in the same ranks tensors would be left."""
    words = (*SIZES, *RUNS[run])
    train_all(tmp_path, {run: words}, ranks=2)
    found = results.measured(tmp_path / run)
    spec = make_spec(*SMALL, "cluster.gpus_per_node=2", *words)
    predicted = {phase: size for phase, size in estimated(spec).phases.items() if phase in found}
    assert {"load", "forward", "backward", "optimizer"} <= predicted.keys()
    assert ("checkpoint_save" in predicted) == ("save.last=true" in words)
    wrong = {phase: predicted[phase] / found[phase] - 1 for phase in predicted}
    assert predicted == pytest.approx({phase: found[phase] for phase in predicted}, rel=TOLERANCE), wrong
