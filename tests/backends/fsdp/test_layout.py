"""Axes, sharding and offload that the FSDP worker refuses, with the way out."""

from __future__ import annotations

import pytest

from tests.support.fsdp_specs import found


@pytest.mark.parametrize("preset", ["ddp", "fsdp", "hsdp", "fsdp_tp"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("model", ["tiny", "llama3_8b", "qwen3_8b"])
def test_every_preset_is_accepted(preset: str, precision: str, model: str) -> None:
    assert found(f"parallel={preset}", f"precision={precision}", f"model={model}") == {}


@pytest.mark.parametrize(
    ("overrides", "path", "rule", "way_out"),
    [
        (
            ("parallel=fsdp_cp", "model.attention=eager"),
            "model.attention",
            "ring attention is made of torch's own kernels; another would see the tokens of one rank alone",
            ("model.attention=sdpa", "parallel.context=1"),
        ),
        (
            ("parallel=fsdp_cp", "model=gpt2", "model.dropout=0.1"),
            "model.dropout",
            "backward of torch's ring attention does not draw the dropout of forward again",
            ("model.dropout=0.0", "parallel.context=1"),
        ),
        (
            ("parallel=fsdp_cp", "precision=fp32"),
            "precision.compute",
            "on a GPU the kernels of ring attention take 16 bits",
            ("precision=bf16", "parallel.context=1"),
        ),
        (
            ("parallel=fsdp_cp", "parallel.pipeline=2"),
            "parallel.pipeline",
            "pipeline stages hand on whole sequences in this version",
            ("parallel.pipeline=1", "parallel.context=1"),
        ),
        (
            ("parallel=fsdp_cp", "train.compile=true"),
            "train.compile",
            "ring attention is not called from compiled blocks in this version",
            ("train.compile=false", "parallel.context=1"),
        ),
        (
            ("parallel=fsdp_pp", "parallel.schedule=zero_bubble"),
            "parallel.schedule",
            "backend=fsdp runs the schedules 1f1b, gpipe, interleaved of torch.distributed.pipelining",
            ("parallel.schedule=1f1b", "parallel.schedule=gpipe"),
        ),
        (
            ("parallel=fsdp_pp", "adapter=qlora"),
            "adapter.name",
            "this version cuts no model with 4-bit weights into stages",
            ("adapter=lora", "parallel.pipeline=1"),
        ),
        (
            ("parallel=fsdp_pp", "parallel.pipeline=4", "train.global_batch_size=6"),
            "train.global_batch_size",
            "torch's 1F1B needs a micro-batch for each of the 4 stages, and an optimizer step has 3",
            ("train.global_batch_size=8", "parallel.schedule=gpipe"),
        ),
        (
            ("parallel.ulysses=2",),
            "parallel.ulysses",
            "backend=fsdp has data, sharded, tensor, pipeline, context and expert parallelism in this version",
            ("parallel.ulysses=1", "parallel=ulysses"),
        ),
        (
            ("model=mixtral_8x7b", "parallel.expert_tensor=2"),
            "parallel.expert_tensor",
            "backend=fsdp has whole experts on its ranks",
            ("parallel.expert_tensor=null", "parallel=ep"),
        ),
        (
            ("parallel=ddp", "parallel.tensor=2"),
            "parallel.tensor",
            "tensor parallel ranks are combined with FSDP2, not with DDP",
            ("parallel=fsdp_tp", "parallel.tensor=1"),
        ),
        (
            ("model=gpt2", "parallel.tensor=2"),
            "parallel.tensor",
            "backend=fsdp cuts models of the family llama alone, and this is gpt",
            ("parallel.tensor=1", "parallel=tp"),
        ),
        (
            ("model.num_key_value_heads=2", "parallel.tensor=4"),
            "parallel.tensor",
            "must divide the 2 key and value heads: transformers does not repeat them",
            ("parallel.tensor=2", "parallel.tensor=1"),
        ),
        (
            ("parallel=fsdp_tp", "train.loss=chunked"),
            "train.loss",
            "the chunked loss cuts the sequence, which parallel.sequence has split over the ranks already",
            ("train.loss=full", "parallel.sequence=false"),
        ),
        (
            ("parallel=ddp", "zero=2"),
            "zero.stage",
            "DDP (parallel.shard=false) shards nothing, and zero.stage=2 asks for it",
            ("zero.stage=0", "parallel=fsdp", "parallel=zero2"),
        ),
        (
            ("zero=1",),
            "zero.stage",
            "FSDP2 shards parameters, gradients and optimizer states: stage 3 frees gathered parameters, 2 keeps them",
            ("zero.stage=3", "zero.stage=2", "parallel=zero1"),
        ),
        (
            ("zero=0",),
            "zero.stage",
            "FSDP2 shards parameters, gradients and optimizer states: stage 3 frees gathered parameters, 2 keeps them",
            ("zero.stage=3", "zero.stage=2", "parallel=ddp"),
        ),
        (
            ("zero.offload_parameters=nvme",),
            "zero.offload_parameters",
            "FSDP2 offloads to the host's memory alone",
            ("zero.offload_parameters=cpu", "parallel=zero3"),
        ),
        (
            ("zero.offload_optimizer=cpu",),
            "zero.offload_optimizer",
            "FSDP2 offloads parameters, gradients and optimizer states together (CPUOffloadPolicy)",
            ("zero.offload_parameters=cpu", "zero.offload_optimizer=none", "parallel=zero2"),
        ),
        (
            ("parallel=ddp", "zero.offload_parameters=cpu"),
            "zero.offload_parameters",
            "DDP keeps the whole model on the device; FSDP2 offloads",
            ("zero.offload_parameters=none", "parallel=fsdp"),
        ),
        (
            ("backend.bucket_view=false",),
            "backend.bucket_view",
            "it is read by DDP alone",
            ("parallel=ddp", "backend.bucket_view=true"),
        ),
        (
            ("parallel=ddp", "backend.reshard_after_forward=true"),
            "backend.reshard_after_forward",
            "it is read by FSDP2 alone",
            ("parallel=fsdp", "backend.reshard_after_forward=null"),
        ),
        (
            ("parallel=ddp", "backend.micro_step_sync=false"),
            "backend.micro_step_sync",
            "it is read by FSDP2 alone",
            ("parallel=fsdp", "backend.micro_step_sync=true"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_layout_that_the_worker_lacks_is_refused(
    overrides: tuple[str, ...], path: str, rule: str, way_out: tuple[str, ...]
) -> None:
    errors = found(*overrides)
    assert path in errors, f"only {sorted(errors)} are refused"
    assert errors[path] == (rule, way_out)
