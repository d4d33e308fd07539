"""Runs whose neighbors in a search differ from them in every way."""

from __future__ import annotations

from tests.support.rule_cases import NODE

STARTS = (
    ("parallel=ddp", "model=7b", *NODE),
    ("parallel=ddp", "precision=fp32", "train.micro_batch_size=12", *NODE),
    ("parallel=fsdp", "train.micro_batch_size=4", "train.global_batch_size=64", *NODE),
    ("parallel=fsdp", "zero=2", "precision=fp32", "precision.reduce=fp32", "checkpointing=full", *NODE),
    ("parallel=hsdp", "optimizer.foreach=true", *NODE),
    ("parallel=fsdp", "model=7b", "model.weights=/weights", *NODE),
    ("parallel=ddp", "backend.bucket_view=false", "optimizer.fused=false", *NODE),
    ("parallel=zero0", "train.sequence_length=256", *NODE),
    ("parallel=zero1", "zero=2", *NODE),
    ("parallel=zero3", "optimizer.fused=true", *NODE),
    ("parallel=tp", "parallel.sequence=false", "model=7b", *NODE),
    ("parallel=pp", "model=7b", "train.micro_batch_size=2", "save.reshardable=true", "cluster.nodes=2", *NODE),
    ("parallel=tp", "checkpointing=selective", "checkpointing.modules=[mlp]", "zero=0", *NODE),
    ("parallel=fsdp", "hardware=h100_80g", "cluster.gpus_per_node=2"),
    ("parallel=fsdp", "save.every=10", "data.workers=2", "save.async=true", "save.export=safetensors"),
    ("parallel=zero3", "model=7b", "train.sequence_length=16384", "model.max_position_embeddings=16384", *NODE),
    ("parallel=ddp", "task=sft", "data=chat", "data.path=chat.jsonl", *NODE),
    ("parallel=fsdp", "task=sft", "data=chat", "data.path=chat.jsonl", "model=7b", *NODE),
    ("parallel=cp", "model=7b", "train.sequence_length=16384", "model.max_position_embeddings=16384", *NODE),
    ("parallel=fsdp", "model=llama3_8b", "adapter=lora", *NODE),
    ("parallel=3d", "model=llama3_405b", "cluster.nodes=64", *NODE),
)
