"""Axes, sharding and offload that the FSDP worker refuses, with the way out."""

from __future__ import annotations

import pytest

from launcher.backends.fsdp import warnings
from launcher.base.errors import ConfigErrors
from tests.support.fsdp_specs import GPU, found
from tests.support.helpers import make_spec

ZERO_BUBBLE = ("parallel.schedule=zero_bubble", "train.global_batch_size=16")


def test_dualpipe_which_torch_does_not_have_is_refused_by_the_name_of_the_one_that_it_has() -> None:
    with pytest.raises(ConfigErrors) as caught:
        make_spec("parallel=fsdp_pp", "parallel.schedule=dualpipe")
    assert caught.value.errors[0].way_out[0] == "parallel.schedule=dualpipe_v parallel.virtual_pipeline=2"


def test_a_split_schedule_says_that_stages_stay_whole_during_a_step() -> None:
    words = ("parallel=fsdp_pp", *ZERO_BUBBLE)
    (said,) = [one for one in warnings(make_spec(*GPU, *words)) if one.path == "parallel.schedule"]
    assert said.rule.startswith("torch gathers the stages of this schedule for all passes of a step")
    assert said.way_out[0] == "zero=2 backend.micro_step_sync=false"
    assert not list(warnings(make_spec(*GPU, *words, "zero=2", "backend.micro_step_sync=false")))


def test_products_that_exchange_their_parts_are_accepted_on_gpus_of_one_node() -> None:
    words = ("parallel=fsdp_tp", "parallel.sequence=true", "train.compile=true", "parallel.async_tensor=true")
    assert found(*words) == {}


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
            ("parallel=ddp", "parallel.pipeline=2", *ZERO_BUBBLE),
            "parallel.schedule",
            "zero_bubble splits backward passes, and DDP, whose hooks the weights' part does not call, would reduce"
            " nothing",
            ("parallel=fsdp_pp", "parallel.schedule=1f1b"),
        ),
        (
            ("parallel=fsdp_pp", *ZERO_BUBBLE, "backend.reshard_after_forward=true"),
            "backend.reshard_after_forward",
            "zero_bubble splits backward passes, and torch keeps a stage gathered for all passes of a step",
            ("backend.reshard_after_forward=null", "parallel.schedule=1f1b"),
        ),
        (
            ("parallel=fsdp_pp", *ZERO_BUBBLE, "train.compile=true"),
            "train.compile",
            "zero_bubble splits backward passes, and compiled blocks have one pass for inputs and weights together,"
            " which torch refuses here",
            ("train.compile=false", "parallel.schedule=1f1b"),
        ),
        (
            ("parallel=fsdp_pp", *ZERO_BUBBLE, "parallel.virtual_pipeline=2", "checkpointing=full"),
            "checkpointing.mode",
            "zero_bubble splits backward passes, and would recompute a block for the inputs and again for each of its"
            " weights, and keep all of that",
            ("checkpointing=none", "parallel.schedule=interleaved"),
        ),
        (
            ("parallel=fsdp_pp", *ZERO_BUBBLE, "train.loss=chunked"),
            "train.loss",
            "zero_bubble splits backward passes, and would recompute the logits of each piece in both parts",
            ("train.loss=full", "parallel.schedule=1f1b"),
        ),
        (
            ("parallel=fsdp_pp", "adapter=qlora"),
            "adapter.name",
            "this version cuts no model with quantised weights into stages",
            ("adapter=lora", "parallel.pipeline=1"),
        ),
        (
            ("parallel=fsdp_pp", "parallel.pipeline=4", "train.global_batch_size=6"),
            "train.global_batch_size",
            "torch's 1F1B needs a micro-batch for each of the 4 stages, and an optimizer step has 3",
            ("train.global_batch_size=8", "parallel.schedule=gpipe"),
        ),
        (
            ("parallel=fsdp_tp", "parallel.ulysses=2"),
            "parallel.tensor",
            "this version combines Ulysses ranks with data parallel ranks alone, not with parallel.tensor",
            ("parallel.tensor=1", "parallel.ulysses=1"),
        ),
        (
            ("parallel=fsdp_tp", "parallel.sequence=false", "train.compile=true", "parallel.async_tensor=true"),
            "parallel.async_tensor",
            "it hides the gathers and scatters of sequence parallel tensor ranks behind products",
            ("parallel.tensor=2 parallel.sequence=true", "parallel.async_tensor=false"),
        ),
        (
            ("parallel=fsdp_tp", "parallel.async_tensor=true"),
            "parallel.async_tensor",
            "torch.compile puts products that exchange their parts in the place of both",
            ("train.compile=true", "parallel.async_tensor=false"),
        ),
        (
            ("parallel=fsdp_tp", "train.compile=true", "parallel.async_tensor=true", "hardware=cpu"),
            "parallel.async_tensor",
            "the ranks exchange parts in symmetric memory, which GPUs alone have",
            ("parallel.async_tensor=false",),
        ),
        (
            ("parallel.ulysses=2", "model.attention=flash"),
            "model.attention",
            "between the exchanges of Ulysses runs torch's attention; another would see the tokens of one rank alone",
            ("model.attention=sdpa", "parallel.ulysses=1"),
        ),
        (
            ("parallel.ulysses=2", "train.compile=true"),
            "train.compile",
            "Ulysses is not called from compiled blocks in this version",
            ("train.compile=false", "parallel.ulysses=1"),
        ),
        (
            ("backend.reshard_after_forward=3",),
            "backend.reshard_after_forward",
            "a number of ranks must divide the 8 over which FSDP2 shards, and be neither 1 nor all of them",
            (
                "backend.reshard_after_forward=true",
                "backend.reshard_after_forward=false",
                "backend.reshard_after_forward=2",
                "backend.reshard_after_forward=4",
            ),
        ),
        (
            ("parallel=fsdp_tp", "backend.reshard_after_forward=2"),
            "backend.reshard_after_forward",
            "FSDP2 keeps no parameters that tensor parallel ranks have cut over some ranks (DTensor)",
            ("backend.reshard_after_forward=true", "parallel.tensor=1"),
        ),
        (
            ("adapter=qlora", "backend.reshard_after_forward=2"),
            "backend.reshard_after_forward",
            "this version keeps no quantised weights over some ranks",
            ("backend.reshard_after_forward=true", "adapter=lora"),
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
            ("zero.stage=0", "parallel=fsdp zero=3", "parallel=zero2"),
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
