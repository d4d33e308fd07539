"""Compiled blocks against torch's own partitioner, which chooses what their forward pass keeps for backward."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.base import registry
from launcher.estimate.rank import adapters
from launcher.estimate.rank.engine import EngineTraits
from tests.support.family_modules import CASES, TOKENS, block_of
from tests.support.helpers import make_spec

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings(
        "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"
    ),  # peft 0.21.2 reads it.
]

LORA = "adapter=lora"


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("name", "words"),
    [("llama", ()), ("qwen3, norms of heads", ()), ("llama", (LORA,)), ("qwen3, norms of heads", (LORA,))],
)
def test_a_compiled_block_saves_what_the_partitioner_keeps(
    name: str, words: tuple[str, ...], *, autocast: bool
) -> None:
    torch = pytest.importorskip("torch")
    build, overrides = CASES[name]
    spec = make_spec(*overrides, *words)
    module = build()
    if words:
        peft = pytest.importorskip("peft")
        settings = peft.LoraConfig(r=spec.adapter.rank, target_modules=list(spec.adapter.targets), lora_dropout=0.0)
        module = peft.get_peft_model(module, settings).base_model.model
    module = module.train() if autocast else module.train().to(torch.bfloat16)
    measured = _kept(module, autocast=autocast)
    engine = EngineTraits(
        library="transformers",
        size=2,
        residual_size=4 if autocast else 2,
        autocast=autocast,
        sequence_length=TOKENS,
        compiled=True,
    )
    family = registry.load("families", spec.model.family)
    rows = adapters.saved(
        family.saved(spec.model, 1, engine),
        family.block(spec.model, 1),
        spec.adapter,
        engine,
        family.traits,
        first=False,
    )
    casts = sum(weight.numel() for weight in block_of(module, 1).parameters() if weight.dim() == 2) if autocast else 0
    assert measured == TOKENS * sum(row.bytes for row in rows) + 2 * casts


def _kept(module: Any, *, autocast: bool) -> int:
    """Bytes of the storages that a block keeps, each once, without weights and the rotary tables."""
    import torch
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    backend: Any = aot_autograd(
        fw_compiler=lambda graph, _: graph,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    stream = torch.randn(1, TOKENS, module.config.hidden_size, requires_grad=True)
    stream = stream if autocast else stream.detach().to(torch.bfloat16).requires_grad_()
    tables = module.model.rotary_emb(stream, torch.arange(TOKENS)[None])
    known = {each.untyped_storage()._cdata for each in (*module.parameters(), *tables)}
    kept: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    block: Any = torch.compile(block_of(module, 1), backend=backend, fullgraph=True)
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        output = block(stream, position_embeddings=tables, attention_mask=None)
    assert output.requires_grad
    return sum(kept.values())
