"""Legal and illegal Megatron-LM runs drawn from a seed: each is a base with a few settings changed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

from launcher.spec import RunSpec, edit
from tests.support.helpers import make_spec

_SMALL = (
    "model.num_hidden_layers=8",
    "model.hidden_size=512",
    "model.intermediate_size=1536",
    "model.num_attention_heads=8",
    "model.num_key_value_heads=4",
    "model.max_position_embeddings=1024",
    "train.sequence_length=512",
    "train.global_batch_size=48",
    "data=synthetic",
)
_EXPERTS = (
    "model.family=moe",
    "model.num_experts=12",
    "model.num_experts_per_tok=2",
    "model.moe_intermediate_size=768",
)
_LATENT = (
    *_EXPERTS,
    "model.family=deepseek",
    "model.kv_lora_rank=64",
    "model.q_lora_rank=96",
    "model.qk_nope_head_dim=64",
    "model.qk_rope_head_dim=32",
    "model.v_head_dim=64",
    "model.num_key_value_heads=null",
)
_GPT = (
    "model.family=gpt",
    "model.hidden_act=gelu_new",
    "model.normalization=layernorm",
    "model.position_embedding=learned",
    "model.attention_bias=true",
    "model.mlp_bias=true",
    "model.num_key_value_heads=null",
    "model.dropout=0.1",
)
_CPU = ("hardware=cpu", "precision=bf16")
_GPU = ("hardware=h100_80g", "cluster.gpus_per_node=8")

BASES: tuple[tuple[str, ...], ...] = (
    ("parallel=tp", *_SMALL, *_GPU),
    ("parallel=pp", *_SMALL, *_GPU, "parallel.pipeline=4"),
    ("parallel=tp_pp", *_SMALL, *_GPU, "hardware=a100_80g"),
    ("parallel=tp", *_SMALL, *_GPU, "parallel.tensor=1", "parallel.sequence=false", "zero=3"),
    ("parallel=cp", *_SMALL, *_GPU, "hardware=b200"),
    ("parallel=tp", *_SMALL, *_GPU, *_GPT, "hardware=v100_32g", "precision=fp16"),
    ("parallel=tp_pp", *_SMALL, *_GPU, *_GPT),
    ("parallel=ep", *_SMALL, *_GPU, *_EXPERTS, "parallel.expert=4"),
    ("parallel=ep", *_SMALL, *_GPU, *_LATENT, "parallel.expert=2", "checkpointing=selective"),
    ("parallel=tp", *_SMALL, *_CPU, "hardware.host_memory_bytes=68719476736", "cluster.gpus_per_node=4"),
    ("parallel=ep", *_SMALL, *_EXPERTS, *_CPU, "cluster.gpus_per_node=4", "parallel.expert=2"),
    ("parallel=tp", *_SMALL, *_GPU, "precision=fp8", "precision.recipe=delayed", "checkpointing=selective"),
    ("parallel=ep", *_SMALL, *_GPU, *_EXPERTS, "hardware=v100_32g", "precision=fp16", "checkpointing=selective"),
    ("parallel=ep", *_SMALL, *_EXPERTS, *_CPU, "cluster.gpus_per_node=2", "checkpointing=selective"),
    ("parallel=pp", *_SMALL, *_GPU, "parallel.virtual_pipeline=2", "checkpointing=full", "checkpointing.method=block"),
    ("parallel=tp", *_SMALL, *_GPU, "zero.offload_optimizer=cpu", "precision.optimizer_states=bf16"),
    ("parallel=ep", *_SMALL, *_GPU, *_LATENT, "parallel.expert=2", "precision=fp8", "precision.recipe=blockwise"),
)

VALUES: Mapping[str, Sequence[object]] = {
    "parallel.tensor": (1, 2, 2, 3, 4, 8),
    "parallel.sequence": (True, False),
    "parallel.pipeline": (1, 2, 2, 3, 4),
    "parallel.virtual_pipeline": (1, 2, 2, 3, 4),
    "parallel.schedule": ("1f1b", "interleaved", "interleaved", "gpipe"),
    "parallel.first_stage_layers": (None, 1, 2, 3),
    "parallel.last_stage_layers": (None, 1, 2, 3),
    "parallel.context": (1, 2, 4),
    "parallel.expert": (1, 2, 3, 4),
    "parallel.expert_tensor": (None, 1, 2),
    "parallel.replicate": (1, 2, 4),
    "parallel.ulysses": (1, 1, 1, 2),
    "cluster.gpus_per_node": (1, 2, 4, 6, 8),
    "cluster.nodes": (1, 2, 3),
    "zero.stage": (0, 1, 2, 3),
    "zero.offload_optimizer": ("none", "cpu", "cpu", "nvme"),
    "precision.compute": ("fp32", "fp16", "bf16", "fp8", "fp4"),
    "precision.recipe": (None, "delayed", "tensorwise", "blockwise", "mxfp8", "nvfp4"),
    "precision.accumulate": (None, "fp32", "bf16"),
    "precision.reduce": (None, "bf16"),
    "precision.gradients": (None, "bf16"),
    "precision.master": (None, "fp32", "fp16", "bf16", "none"),
    "precision.optimizer_states": (None, "fp32", "bf16", "fp16", "fp8"),
    "checkpointing.mode": ("none", "selective", "full"),
    "checkpointing.method": ("uniform", "block"),
    "checkpointing.modules": ((), ("core_attn",), ("moe_act",), ("layernorm", "mlp"), ("mla_up_proj",), ("q_proj",)),
    "checkpointing.layers": (None, 1, 4),
    "optimizer.name": ("adamw", "adamw", "sgd", "lion", "muon", "adafactor"),
    "optimizer.min_lr": (0.0, 1e-5, 1e-3),
    "optimizer.schedule": ("constant", "linear", "cosine"),
    "optimizer.warmup_steps": (0, 10),
    "model.num_hidden_layers": (6, 8, 9, 12, 16),
    "model.num_attention_heads": (4, 6, 8, 12),
    "model.num_key_value_heads": (None, 1, 2, 3, 4, 8),
    "model.head_dim": (None, 64, 80),
    "model.hidden_act": ("silu", "gelu", "gelu_new", "relu", "squared_relu"),
    "model.attention_bias": (True, False),
    "model.mlp_bias": (True, False),
    "model.qk_norm": (True, False),
    "model.normalization": ("rmsnorm", "layernorm"),
    "model.position_embedding": ("rope", "learned", "none"),
    "model.rope_theta": (10000.0, 500000.0, 1234.5),
    "model.tie_word_embeddings": (True, False),
    "model.attention": ("flash", "sdpa", "eager"),
    "model.dropout": (0.0, 0.1),
    "model.vocab_size": (256, 32000, 50257),
    "model.num_experts": (0, 4, 9, 12),
    "model.num_experts_per_tok": (1, 2, 4),
    "model.num_shared_experts": (0, 1, 2),
    "model.first_dense_layers": (0, 1, 8),
    "model.kv_lora_rank": (0, 64),
    "model.q_lora_rank": (0, 96),
    "train.sequence_length": (None, 100, 512, 1024, 2048, 510),
    "train.micro_batch_size": (1, 2, 3),
    "train.global_batch_size": (None, 7, 16, 24, 96),
    "train.eval_every": (None, 10),
    "train.loss": ("full", "fused", "chunked"),
    "train.compile": (False, True),
    "train.timeout_s": (600, 1800, 90),
    "save.every": (None, 10, 33),
    "save.last": (True, False),
    "save.asynchronous": (False, True),
    "data.workers": (0, 2),
    "tracking.kind": ("none", "tensorboard", "wandb", "mlflow"),
}


def drawn(count: int, seed: int = 1234) -> Iterator[RunSpec]:
    """The given number of runs; the same for the same seed.

    Every value of every setting in turn on every base, with few other changes, so that many runs stay legal and the
    others break few rules.
    """
    source = random.Random(seed)
    bases = [make_spec(*base) for base in BASES]
    cases = [(path, value) for path, values in VALUES.items() for value in dict.fromkeys(values)]
    for index in range(count):
        path, value = cases[index // len(bases) % len(cases)]
        spec = edit.changed(bases[index % len(bases)], path, value)
        for other in source.sample(sorted(VALUES), source.choice((0, 0, 1, 1, 2, 3))):
            spec = edit.changed(spec, other, source.choice(VALUES[other]))
        yield spec
