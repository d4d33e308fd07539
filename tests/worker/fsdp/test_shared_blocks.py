"""Zamba 2, several of whose layers use one block: two ranks against one process, its export, a resumed run, LoRA."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import training
from tests.support.checkpoints import exported, held_out_loss
from tests.support.helpers import needs

TOLERANCE = 2e-5
"""Relative, over four steps in fp32."""

STEPS, SAVED = 4, 2
_EXTRA = {
    "layers_block_type": "[mamba,hybrid,hybrid,mamba,hybrid]",
    "num_mem_blocks": "2",
    "use_shared_attention_adapter": "true",
    "use_mem_rope": "true",
    "adapter_rank": "4",
    "n_mamba_heads": "8",
    "mamba_d_state": "16",
    "chunk_size": "16",
}
ZAMBA_2 = (
    *("model.family=transformers", "model.model_type=zamba2", "model.num_hidden_layers=5", "model.head_dim=32"),
    *("model.num_key_value_heads=4", "model.hidden_act=gelu", "model.tie_word_embeddings=true"),
    f"model.extra={{{','.join(f'{key}:{value}' for key, value in _EXTRA.items())}}}",
    *(f"train.steps={STEPS}", f"train.eval_every={STEPS}", "train.eval_steps=2", "optimizer.clip=0.1"),
)
"""The first and the last layer with a block use one, the second has its own."""

LORA = (*ZAMBA_2, "adapter=lora", "adapter.rank=4")
EXPORT = "save.export=safetensors"
ONE_RANK = {"plain": ("parallel=ddp", *ZAMBA_2), "lora": ("parallel=ddp", *LORA)}
FSDP = {
    "ddp": ("parallel=ddp", *ZAMBA_2, "checkpointing=full"),
    "fsdp": ("parallel=fsdp", *ZAMBA_2, f"save.every={SAVED}", EXPORT),
    "fsdp_full": ("parallel=fsdp", *ZAMBA_2, "checkpointing=full", "train.micro_batch_size=2"),
    "lora": ("parallel=fsdp", *LORA),
}
ZERO = {f"zero{stage}": (f"parallel=zero{stage}", *ZAMBA_2) for stage in (1, 3)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shared")
    training.train_all(made / "one", ONE_RANK, ranks=1)
    training.train_all(made / "two", FSDP, ranks=2)
    return made


def _near(folder: Path, name: str, other: str) -> None:
    expected = training.losses(folder / "one" / other)
    assert expected[-1] < 0.99 * expected[0], "nothing was learnt, so equal losses would say little"
    assert training.losses(folder / "two" / name) == pytest.approx(expected, rel=TOLERANCE)
    norms = [
        [line["grad_norm"] for line in training.lines(folder / place)] for place in (f"two/{name}", f"one/{other}")
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


@pytest.mark.parametrize("name", FSDP)
def test_two_ranks_lose_what_one_process_does(name: str, folder: Path) -> None:
    _near(folder, name, "lora" if name == "lora" else "plain")


@pytest.mark.thorough
def test_zero_loses_what_one_process_does(folder: Path) -> None:
    needs("deepspeed", "these need the extra 'deepspeed'")
    training.train_all(folder / "two", ZERO, ranks=2)
    for name in ZERO:
        _near(folder, name, "plain")


def test_the_export_is_a_model_that_transformers_loads_with_its_blocks_shared(folder: Path) -> None:
    model = exported(folder / "two" / "fsdp" / "export")
    blocks = [model.model.layers[layer].shared_transformer for layer in (1, 2, 4)]
    weights = [block.self_attn.q_proj.weight for block in blocks]
    assert weights[0] is weights[2] is not weights[1]
    evaluated = [line["eval_loss"] for line in training.lines(folder / "two" / "fsdp") if "eval_loss" in line]
    assert held_out_loss(model, folder / "two" / "fsdp") == pytest.approx(evaluated[-1], rel=1e-5)


@pytest.mark.thorough
def test_a_resumed_run_loses_what_it_would_have_lost(folder: Path) -> None:
    path = folder / "two" / "fsdp" / "checkpoints" / f"step-{SAVED:08d}"
    runs = {"resumed": ("parallel=fsdp", *ZAMBA_2, f"save.load={path}")}
    found = training.train_all(folder / "again", runs, ranks=2)["resumed"]
    assert found == pytest.approx(training.losses(folder / "two" / "fsdp")[SAVED:], rel=TOLERANCE)
