"""The formulas against the trace of the workers' own code: families, frameworks, precisions, checkpointing, degrees."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import batched
from pathlib import Path

import pytest

from launcher.preflight import assess, findings
from launcher.spec import RunSpec
from launcher.spec.parse import to_dict
from tests.support import cover, ranks, trace_many, train_many, training
from tests.support.helpers import make_spec, needs

needs("torch", "the trace needs the extra 'fsdp'")

_SHAPE = (
    "model.num_hidden_layers=3",
    "model.hidden_size=512",
    "model.num_attention_heads=8",
    "model.vocab_size=4100",
    "model.max_position_embeddings=1024",
    "train.sequence_length=512",
    "train.micro_batch_size=2",
    "hardware=h100_80g",
)
_DECODERS = (
    *("model=tiny", "model.family=transformers", "model.intermediate_size=1376", "model.num_key_value_heads=4"),
    *("model.attention_bias=false", "model.head_dim=64"),
)
_GATED = ("model.intermediate_size=1376", "model.num_key_value_heads=4")
_FAMILIES = {
    "llama": ("model=tiny", *_GATED),
    "gpt": ("model=gpt2", "model.intermediate_size=2048", "model.num_key_value_heads=8"),
    "moe": (
        *("model=mixtral_8x7b", "model.num_experts=4", "model.moe_intermediate_size=1376", "model.head_dim=64"),
        *_GATED,
    ),
}
_FAMILIES |= {
    "deepseek": (
        *("model=deepseek_v3", "model.kv_lora_rank=128", "model.q_lora_rank=0", "model.num_experts=4"),
        *("model.qk_nope_head_dim=64", "model.qk_rope_head_dim=32", "model.v_head_dim=64"),
        *("model.num_experts_per_tok=2", "model.moe_intermediate_size=688", "model.first_dense_layers=1"),
        *("model.n_group=1", "model.topk_group=1", "model.intermediate_size=1376"),
    ),
    "gemma2": (*_DECODERS, "model.model_type=gemma2", "model.attention=eager"),
    "gemma3": (*_DECODERS, "model.model_type=gemma3_text", "model.qk_norm=true"),
    "gpt-oss": (
        *(*_DECODERS, "model.model_type=gpt_oss", "model.attention=eager", "model.num_experts=4"),
        *("model.num_experts_per_tok=2", "model.moe_intermediate_size=1376"),
    ),
    "neox": (
        *("model=gpt2", "model.family=transformers", "model.model_type=gpt_neox", "model.position_embedding=rope"),
        *("model.intermediate_size=2048", "model.dropout=0.0", "model.hidden_act=gelu"),
        "model.tie_word_embeddings=false",
    ),
    "llama4": (
        *(*_DECODERS, "model.model_type=llama4_text", "model.qk_norm=true", "model.num_experts=4"),
        *("model.num_experts_per_tok=1", "model.moe_intermediate_size=1376"),
    ),
    "mimo": (
        *(*_DECODERS, "model.model_type=mimo_v2_flash", "model.attention=eager", "model.num_experts=4"),
        *("model.num_experts_per_tok=2", "model.moe_intermediate_size=688"),
        "model.extra={v_head_dim:48,sliding_window:128}",
    ),
    "dbrx": (
        *(*_DECODERS, "model.model_type=dbrx", "model.num_experts=4", "model.num_experts_per_tok=2"),
        *("model.moe_intermediate_size=1376", "model.head_dim=null", "model.extra={attn_config.clip_qkv:8}"),
        *("model.normalization=layernorm", "model.intermediate_size=2048"),
    ),
    "zamba2": (
        *("model=tiny", "model.family=transformers", "model.model_type=zamba2", "model.intermediate_size=1376"),
        *("model.num_key_value_heads=8", "model.head_dim=128", "model.hidden_act=gelu"),
        *("model.tie_word_embeddings=true", "model.position_embedding=none"),
        "model.extra={layers_block_type:[mamba,hybrid,hybrid,mamba,hybrid],num_mem_blocks:2,adapter_rank:32,"
        "n_mamba_heads:16,chunk_size:64}",
    ),
    "olmo2": (*_DECODERS, "model.model_type=olmo2", "model.qk_norm=true"),
}
_FRAMEWORKS = {
    "ddp": ("parallel=ddp",),
    "fsdp": ("parallel=fsdp",),
    "hsdp": ("parallel=hsdp",),
    "tp": ("parallel=fsdp", "parallel.tensor=2"),
    "tp+sp": ("parallel=fsdp", "parallel.tensor=2", "parallel.sequence=true"),
    "cp": ("parallel=fsdp_cp",),
    "zero0": ("parallel=ddp", "backend=deepspeed", "zero=0"),
    "zero1": ("parallel=zero1", "zero.reduce_bucket_size=1000000"),
    "zero2": ("parallel=zero2", "zero.reduce_bucket_size=1000000"),
    "zero3": ("parallel=zero3", "zero.reduce_bucket_size=1000000"),
    "ulysses": ("parallel=ulysses", "zero.reduce_bucket_size=1000000"),
}
_LONG = "/".join((
    "train.sequence_length=4096",
    "model.max_position_embeddings=4096",
    "train.micro_batch_size=1",
    "model.vocab_size=1024",
))
"""So many tokens and so few logits that what attention holds decides."""

_WIDE = "/".join((
    "model.hidden_size=1024",
    "model.intermediate_size=2752",
    "model.num_attention_heads=16",
    f"{_LONG}/model.vocab_size=256",
))
"""So wide a model and so few logits that the last norm decides."""

_FEW = "/".join(("train.sequence_length=128", "train.micro_batch_size=1", "model.vocab_size=1024"))
_HEAVY = f"{_FEW}/model.moe_intermediate_size=4096"
"""So few tokens and so large experts that gathered and reduced parameters decide."""

_IN_TORCH = "model.num_hidden_layers=5/hardware=cpu"
"""Zamba 2's layers, two of which use one block and one another, with scans by code of Python."""

_ROOMY = "zero.reduce_bucket_size=30000000"
"""So large a bucket that it takes all gradients."""

_NARROW = "model.num_experts=16/model.num_experts_per_tok=4/model.moe_intermediate_size=160"
"""Experts so narrow that their outputs decide."""

_EVEN = "model.intermediate_size=1408"
"""Inputs that operands of 4-bit floating point divide, blocks and all."""

_BY_128 = f"{_EVEN}/hardware=b200"
"""Sizes that 128 divides, and a card with units of nvfp4."""

_BY_KERNEL = "precision.qat=nvfp4/precision.qat_group_size=16/hardware=b200"

_EXPERTS = "lora/adapter.targets=[q_proj,v_proj]/adapter.parameters=[experts.gate_up_proj,experts.down_proj]"
"""Matrices added to the weights of all experts of a layer."""

_RELEASED = "/".join((
    "zero.max_live_parameters=2000000",
    "zero.max_reuse_distance=1000000",
    "zero.prefetch_bucket_size=200000",
))
"""So few gathered parameters that ZeRO 3 frees most of the model between two uses."""

_BOUND = 0.02
_MODES = ("none", "selective", "full")

_FSDP = (
    *(f"llama/fsdp/{cell}/4" for cell in ("bf16/none", "fp32/selective", "bf16/full")),
    "llama/fsdp/bf16/selective/4/checkpointing.modules=[mlp]",
    "llama/fsdp/bf16/selective/4/checkpointing.modules=[attention,mlp,norm]/checkpointing.layers=2",
    "llama/ddp/bf16/selective/4/checkpointing.modules=[attention,norm]",
    "llama/tp+sp/bf16/selective/4/checkpointing.modules=[mlp,norm]",
    "gpt/ddp/fp32/selective/4/checkpointing.modules=[mlp,norm]",
    "moe/fsdp/bf16/selective/4/checkpointing.modules=[experts]",
    "deepseek/fsdp/bf16/selective/4/checkpointing.modules=[attention]",
    *(f"llama/ddp/bf16/{mode}/4" for mode in _MODES[::2]),
    *(f"gpt/fsdp/{cell}/4" for cell in ("bf16/selective", "fp32/full")),
    *(f"gpt/ddp/fp32/{mode}/4" for mode in _MODES[::2]),
    *(f"moe/fsdp/{cell}/4" for cell in ("bf16/full", "fp32/none", "fp32/selective")),
    *(f"moe/ddp/{cell}/4" for cell in ("bf16/none", "fp32/full")),
    *(f"llama/tp/{cell}/4" for cell in ("bf16/none", "fp32/selective", "bf16/full")),
    "llama/cp/bf16/full/4",
    *(f"llama/cp/bf16/{mode}/4/parallel.context=4/model.num_key_value_heads=8/{_LONG}" for mode in _MODES[:2]),
    f"llama/fsdp/bf16/selective/4/{_LONG}",
    "llama/hsdp/bf16/none/4",
    *(f"llama/fsdp/fp8/{mode}/4/{_LONG}" for mode in _MODES[::2]),
    f"llama/fsdp/fp8/full/4/{_LONG}/precision.recipe=rowwise_with_gw_hp",
    f"llama/ddp/fp8/none/4/{_LONG}",
    f"llama/fsdp/fp8/full/4/{_FEW}",
    f"llama/fsdp/fp8/none/4/zero.quantized_weights=true/{_FEW}",
    "llama/fsdp/fp8/full/4/zero.quantized_weights=true/hardware=cpu",
    "llama/ddp/fp8/full/4/hardware=cpu",
    *(f"llama/fsdp/mxfp8/{mode}/4/{_EVEN}/hardware=b200/{_LONG}" for mode in _MODES),
    f"llama/fsdp/mxfp8/full/4/{_EVEN}/hardware=b200/{_FEW}",
    f"llama/ddp/mxfp8/none/4/{_EVEN}/hardware=b200/precision.parameters=bf16",
    *(f"llama/fsdp/mxfp8/{mode}/4/{_EVEN}/hardware=cpu/{_LONG}" for mode in _MODES),
    f"llama/fsdp/mxfp8/none/4/{_EVEN}/hardware=cpu/{_FEW}",
    *(f"llama/fsdp/nvfp4/{mode}/4/{_BY_128}/{_LONG}" for mode in _MODES[::2]),
    *(f"llama/fsdp/nvfp4/{mode}/4/{_BY_128}/{_FEW}" for mode in _MODES[::2]),
    f"llama/ddp/nvfp4/none/4/{_BY_128}/precision.parameters=bf16",
    "llama/ddp/fp16/full/4",
    "llama/ddp/bf16/none/4/precision.parameters=bf16",
    "llama/ddp/bf16/full/4/adapter=lora",
    "llama/tp+sp/bf16/none/4",
    "llama/fsdp/bf16/none/64",
    *(f"llama/fsdp/{cell}/4/zero=2" for cell in ("fp32/none", "bf16/full")),
    "llama/ddp/bf16/none/4/train.global_batch_size=24",
    "llama/fsdp/bf16/none/4/train.global_batch_size=24",
    *(f"llama/fsdp/bf16/none/4/train.global_batch_size=24/{_FEW}/model.num_hidden_layers={n}" for n in (1, 2)),
    "llama/fsdp/bf16/full/4/train.loss=chunked",
    "moe/ddp/bf16/full/4",
    "moe/fsdp/bf16/full/2/model.moe_intermediate_size=128",
    f"moe/fsdp/bf16/none/4/{_HEAVY}",
    "llama/tp+sp/bf16/selective/4/model.tie_word_embeddings=true",
    "gpt/hsdp/bf16/none/4/optimizer.foreach=true/model.tie_word_embeddings=true",
    *(f"{decoder}/fsdp/bf16/none/4" for decoder in ("gemma2", "gemma3", "gpt-oss", "llama4", "mimo", "neox", "olmo2")),
    "gemma3/fsdp/bf16/full/4/model.extra={sliding_window:128}/model.num_hidden_layers=6",
    *(f"llama/fsdp/bf16/{mode}/4/model.attention=eager/{_LONG}" for mode in _MODES[::2]),
    *(f"gemma2/fsdp/bf16/{mode}/4/{_LONG}" for mode in _MODES[::2]),
    f"gpt-oss/ddp/fp32/full/4/{_LONG}",
    *(f"llama/{cell}/4/adapter=lora" for cell in ("tp/bf16/none", "tp+sp/bf16/selective")),
    "llama/fsdp/bf16/full/4/adapter=lora/adapter.dora=true",
    *(f"llama/ddp/bf16/{mode}/4/adapter=qlora/adapter.dora=true/{_FEW}" for mode in _MODES[::2]),
    f"llama/ddp/fp32/full/4/adapter=qlora/adapter.dora=true/{_FEW}",
    "llama/ddp/bf16/full/4/adapter=qlora/adapter.dora=true",
    *(f"llama/ddp/bf16/full/4/adapter={name}/{_FEW}" for name in ("lora", "lora/adapter.dora=true", "qlora")),
    f"llama/fsdp/fp32/full/4/adapter=lora/adapter.dora=true/{_FEW}",
    "llama/fsdp/bf16/full/4/adapter=lora/adapter.modules_to_save=[embed_tokens,lm_head]",
    *(f"moe/ddp/bf16/full/4/adapter={name}/adapter.targets=[q_proj,v_proj]" for name in ("lora", "qlora")),
    *(f"moe/{cell}/4/adapter={_EXPERTS}" for cell in ("fsdp/bf16/full", "ddp/fp32/full")),
    f"moe/fsdp/bf16/full/4/adapter={_EXPERTS}/{_LONG}",
    f"moe/ddp/bf16/full/4/adapter=q{_EXPERTS}/{_HEAVY}",
    f"moe/ddp/bf16/full/4/adapter=q{_EXPERTS}/adapter.parameters=[experts.down_proj]",
    "llama/fsdp/bf16/full/4/adapter=qlora/adapter.quant_type=int8/hardware=cpu",
    f"llama/ddp/fp32/full/4/adapter=qlora/adapter.quant_type=int8/hardware=cpu/{_FEW}",
    "llama/fsdp/fp32/full/4/adapter=qlora/adapter.quant_type=int8/hardware=cpu",
    f"llama/ddp/bf16/none/4/adapter=qlora/{_LONG}",
    "llama/fsdp/bf16/none/4/train.global_batch_size=16/backend.micro_step_sync=false",
    *(f"deepseek/fsdp/bf16/{mode}/4/{_LONG}/{_NARROW}" for mode in ("none", "full")),
    f"moe/fsdp/bf16/full/4/{_LONG}/model.qk_norm=true/{_NARROW}",
    f"moe/fsdp/bf16/full/4/parallel.expert=2/{_HEAVY}",
    f"moe/fsdp/fp32/full/4/parallel.expert=2/{_FEW}",
    f"moe/fsdp/fp32/none/16/parallel.expert=4/{_HEAVY}",
    "deepseek/fsdp/bf16/full/4/parallel.expert=2",
    f"moe/hsdp/bf16/none/8/zero=2/parallel.expert=2/{_HEAVY}",
    *(f"moe/fsdp/{cell}/4/parallel.expert=2/{_LONG}" for cell in ("bf16/none", "fp32/full")),
    "gpt-oss/fsdp/bf16/none/4/parallel.expert=2",
    *(f"dbrx/{cell}/4" for cell in ("fsdp/bf16/none", "fsdp/fp32/full", "ddp/bf16/full", "ddp/fp32/none")),
    f"dbrx/fsdp/bf16/none/4/{_HEAVY}",
    f"dbrx/fsdp/bf16/full/4/{_LONG}",
    f"dbrx/fsdp/bf16/none/4/{_LONG}/{_NARROW}",
    "dbrx/fsdp/bf16/full/4/adapter=lora/adapter.targets=[Wqkv,out_proj]",
    *(
        f"llama/{cell}/4/optimizer={name}/optimizer.stochastic_rounding=true/precision.parameters=bf16/hardware=cpu"
        for cell, name in (("fsdp/bf16/full", "adamw_8bit"), ("ddp/bf16/none", "adamw_4bit"))
    ),
    *(f"llama/fsdp/bf16/{mode}/4/precision.qat=int8_int4/{_LONG}" for mode in _MODES[::2]),
    f"llama/ddp/bf16/none/4/precision.qat=int8_int4/{_LONG}",
    *(f"llama/ddp/fp32/{mode}/4/precision.qat=int8_int4/{_FEW}" for mode in _MODES[::2]),
    f"llama/ddp/bf16/full/4/precision.qat=int8_int4/{_FEW}",
    f"llama/fsdp/bf16/none/4/precision.qat=int4/{_FEW}",
    "llama/ddp/bf16/none/4/precision.qat=int8_int4_asymmetric",
    *(f"llama/{cell}/4/precision.qat=int4/{_WIDE}" for cell in ("fsdp/bf16/none", "fsdp/bf16/full", "ddp/bf16/none")),
    f"llama/fsdp/bf16/none/4/{_WIDE}",
    *(f"llama/fsdp/bf16/{mode}/4/precision.qat=int8_int4/adapter=lora" for mode in _MODES[::2]),
    *(f"llama/fsdp/bf16/{mode}/4/precision.qat=mxfp4/{_EVEN}/{_LONG}" for mode in _MODES),
    f"llama/ddp/fp32/full/4/precision.qat=mxfp4/{_EVEN}/{_FEW}",
    f"llama/fsdp/bf16/none/4/precision.qat=mxfp4/{_EVEN}/{_LONG}/adapter=lora",
    *(f"llama/fsdp/bf16/{mode}/4/{_BY_KERNEL}/{_EVEN}/{_LONG}" for mode in _MODES[::2]),
    *(f"zamba2/{cell}/4/{_IN_TORCH}" for cell in ("fsdp/bf16/none", "fsdp/bf16/full", "fsdp/fp32/full")),
    *(f"zamba2/{cell}/4/{_IN_TORCH}" for cell in ("ddp/fp32/none", "ddp/bf16/full")),
    *(f"zamba2/{cell}/4/{_IN_TORCH}/{_LONG}" for cell in ("fsdp/bf16/none", "ddp/fp32/full")),
    *(f"zamba2/{cell}/4/{_IN_TORCH}/{_FEW}" for cell in ("fsdp/bf16/full", "ddp/bf16/full")),
    f"zamba2/fsdp/bf16/none/4/{_IN_TORCH}/adapter=lora",
    *(f"llama/fsdp/fp32/full/4/optimizer=sgd/optimizer.{how}" for how in ("foreach=true", "foreach=false")),
)
"""Family / framework / precision / checkpointing / ranks / more overrides: pairs of these, and what each overrides."""

_DEEPSPEED = (
    *(f"llama/zero0/{cell}/4" for cell in ("bf16/none", "fp32/full")),
    *(f"llama/zero1/{cell}/4" for cell in ("bf16/none", "fp32/full")),
    *(f"llama/zero2/{cell}/4" for cell in ("bf16/none", "bf16/selective", "fp32/full")),
    *(f"llama/zero3/{cell}/4" for cell in ("bf16/none", "fp32/full")),
    f"llama/ulysses/fp32/full/4/zero=1/{_LONG}",
    f"llama/ulysses/bf16/none/4/zero=2/parallel.ulysses=4/model.num_key_value_heads=2/{_LONG}",
    f"llama/ulysses/bf16/selective/4/zero=3/{_LONG}",
    f"llama/zero3/bf16/full/4/{_LONG}",
    "llama/zero3/bf16/selective/4/zero.prefetch_bucket_size=10000000",
    "llama/zero3/bf16/full/64",
    "llama/zero3/fp32/full/4/adapter=lora",
    "moe/zero3/bf16/none/4/adapter=lora",
    "llama/zero2/bf16/full/2",
    "llama/zero2/bf16/none/4/train.global_batch_size=16",
    "llama/zero3/bf16/selective/4/checkpointing.modules=[attention,norm]",
    "llama/zero2/bf16/full/4/checkpointing.layers=2",
    "gpt/zero2/bf16/selective/2/model.tie_word_embeddings=true",
    "gpt/zero3/fp32/none/4/model.tie_word_embeddings=true",
    *(f"moe/{stage}/bf16/full/2/model.moe_intermediate_size=128" for stage in ("zero1", "zero3")),
    "moe/zero0/bf16/full/4/optimizer.foreach=true",
    "llama/zero2/bf16/full/4/adapter=lora",
    *(f"dbrx/{cell}/4" for cell in ("zero1/bf16/full", "zero2/bf16/none", "zero3/bf16/full", "zero3/fp32/full")),
    *(f"zamba2/{cell}/4/{_IN_TORCH}" for cell in ("zero1/bf16/full", "zero2/fp32/full")),
    *(f"zamba2/{cell}/4/{_IN_TORCH}" for cell in ("zero3/bf16/full", "zero3/fp32/full")),
    f"zamba2/zero2/bf16/full/4/{_IN_TORCH}/{_LONG}",
    "llama/zero0/bf16/full/4/optimizer=sgd",
    "llama/zero1/bf16/none/4/optimizer=sgd/optimizer.foreach=false",
    "llama/zero1/bf16/none/4/train.global_batch_size=16",
    "llama/zero3/bf16/none/4/precision.reduce=fp32",
    "llama/zero3/bf16/full/4/zero.quantized_weights=true",  # With a stand-in for DeepSpeed's CUDA kernel.
    "llama/zero2/bf16/full/4/+backend.extra.zero_optimization.round_robin_gradients=true",
    *(f"llama/zero1/bf16/{cell}/precision.accumulate=fp32" for cell in ("none/4", "full/2/train.global_batch_size=24")),
    f"llama/zero2/bf16/full/2/precision.accumulate=fp32/{_FEW}",
    "llama/zero2/bf16/none/4/precision.accumulate=fp32/train.global_batch_size=24",
    "llama/zero3/bf16/full/2/optimizer=adamw_8bit",
    *(f"llama/zero3/bf16/{mode}/2/{_RELEASED}" for mode in ("none", "full")),
    "llama/zero2/bf16/full/4/optimizer=adamw_8bit/train.global_batch_size=24",
    "gpt/zero1/fp32/full/4/optimizer=adamw_8bit/model.tie_word_embeddings=true",
    "llama/zero1/fp32/full/2/optimizer=lion",
    f"llama/zero1/bf16/none/4/{_ROOMY}/train.global_batch_size=16",
    "llama/zero2/bf16/none/1/train.global_batch_size=4",
    f"llama/zero1/bf16/none/4/train.global_batch_size=24/{_FEW}/model.num_hidden_layers=1",
    *(
        f"llama/{stage}/bf16/{mode}/4/{_ROOMY}/{_FEW}"
        for stage in ("zero1", "zero2", "zero3")
        for mode in ("none", "full")
    ),
)

_TOGETHER = 48
"""Cells that one process traces: few enough for the limit of time of one test on a busy machine."""

_PLACES = ("family", "framework", "precision", "mode", "ranks")
"""Names of the first five parts of a cell, in their order."""

type Traced = Callable[[str], dict[str, int]]


def _spec(cell: str) -> RunSpec:
    family, framework, precision, mode, ranks, *more = cell.split("/")
    places = (f"precision={precision}", f"checkpointing={mode}", f"cluster.gpus_per_node={ranks}")
    spec = make_spec(*_FAMILIES[family], *_SHAPE, *_FRAMEWORKS[framework], *places, *more)
    assert not findings.errors(spec)
    return spec


def _parts(cell: str) -> list[str]:
    places = cell.split("/")
    return [*(f"{name}={each}" for name, each in zip(_PLACES, places, strict=False)), *places[len(_PLACES) :]]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Traced:
    """The trace of a cell, which is made with those of this session that stand around it."""
    found: dict[str, dict[str, int]] = {}
    tried: set[str] = set()
    asked = cover.asked(request)

    def of(cell: str) -> dict[str, int]:
        if cell not in found:
            assert cell not in tried, "the process that traces it has failed in an earlier test"
            of_one_backend = ([each for each in all_ if each in asked] for all_ in (_FSDP, _DEEPSPEED))
            cells = next(some for all_ in of_one_backend for some in batched(all_, _TOGETHER) if cell in some)
            tried.update(cells)
            found.update(_traced(cells, tmp_path_factory.mktemp("traced")))
        return found[cell]

    return of


def _traced(cells: Sequence[str], folder: Path) -> dict[str, dict[str, int]]:
    """Trace them in one process, each in a world of its own."""
    specs = {cell: _spec(cell) for cell in cells}
    given, found = folder / "specs.json", folder / "found.json"
    given.write_text(json.dumps({cell: to_dict(spec) for cell, spec in specs.items()}))
    (backend,) = {spec.backend.name for spec in specs.values()}
    ranks.run(
        trace_many.main,
        [str(given), str(found)],
        imports=train_many.IMPORTS[backend],
        count=1,
        environment=training.environment(backend),
        log=folder / "log",
        late=train_many.late(specs.values()),
    )
    answers: dict[str, dict[str, int]] = json.loads(found.read_text())
    return answers


def _by_formula(spec: RunSpec) -> dict[str, int]:
    """Each phase without the libraries' workspaces, which fake tensors do not have."""
    estimate = assess.estimated(spec)
    workspace = sum(pile.bytes for pile in estimate.piles if pile.pile == "workspace")
    found: dict[str, int] = {"idle": estimate.static_bytes - workspace}
    for phase, size in estimate.phases.items():
        if phase != "checkpoint_save":
            found[phase] = size - (workspace if phase != "load" else 0)  # They come with the first product.
    return found


def _compare(cell: str, traced: Mapping[str, int]) -> None:
    formula = _by_formula(_spec(cell))
    assert set(traced) == set(formula)
    for phase, size in traced.items():
        assert formula[phase] == pytest.approx(size, rel=_BOUND), f"{phase}: formula {formula}, trace {traced}"


_CHOSEN = cover.both({cell: _parts(cell) for cell in (*_FSDP, *_DEEPSPEED)})


@pytest.mark.parametrize("cell", cover.marked(_FSDP, _CHOSEN))
def test_formula_and_trace_agree_within_two_percent_in_every_phase(cell: str, traced: Traced) -> None:
    _compare(cell, traced(cell))


@pytest.mark.parametrize("cell", cover.marked(_DEEPSPEED, _CHOSEN))
def test_formula_and_trace_of_deepspeed_agree_within_two_percent_in_every_phase(cell: str, traced: Traced) -> None:
    needs("deepspeed", "the trace of these needs the extra 'deepspeed'")
    _compare(cell, traced(cell))
