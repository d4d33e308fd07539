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
    assert said.rule.startswith("with this schedule torch keeps the stages gathered for a whole step")
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
            "ring attention uses torch's own kernels; any other would see only one rank's tokens",
            ("model.attention=sdpa", "parallel.context=1"),
        ),
        (
            ("parallel=fsdp_cp", "model=gpt2", "model.dropout=0.1"),
            "model.dropout",
            "torch's ring attention does not redraw the forward pass's dropout in backward",
            ("model.dropout=0.0", "parallel.context=1"),
        ),
        (
            ("parallel=fsdp_cp", "precision=fp32"),
            "precision.compute",
            "on a GPU the kernels of ring attention take only 16-bit formats",
            ("precision=bf16", "parallel.context=1"),
        ),
        (
            ("parallel=fsdp_cp", "parallel.pipeline=2"),
            "parallel.pipeline",
            "in this version pipeline stages pass on whole sequences",
            ("parallel.pipeline=1", "parallel.context=1"),
        ),
        (
            ("parallel=fsdp_cp", "train.compile=true"),
            "train.compile",
            "this version does not call ring attention from compiled blocks",
            ("train.compile=false", "parallel.context=1"),
        ),
        (
            ("parallel=ddp", "parallel.pipeline=2", *ZERO_BUBBLE),
            "parallel.schedule",
            (
                "zero_bubble splits backward passes, and the part for the weights does not call "
                "DDP's hooks, so nothing would be reduced"
            ),
            ("parallel=fsdp_pp", "parallel.schedule=1f1b"),
        ),
        (
            ("parallel=fsdp_pp", *ZERO_BUBBLE, "backend.reshard_after_forward=true"),
            "backend.reshard_after_forward",
            "zero_bubble splits backward passes, and torch keeps a stage gathered for the whole step",
            ("backend.reshard_after_forward=null", "parallel.schedule=1f1b"),
        ),
        (
            ("parallel=fsdp_pp", *ZERO_BUBBLE, "train.compile=true"),
            "train.compile",
            (
                "zero_bubble splits backward passes, and compiled blocks compute the gradients of inputs and "
                "weights in one pass, which torch refuses here"
            ),
            ("train.compile=false", "parallel.schedule=1f1b"),
        ),
        (
            ("parallel=fsdp_pp", *ZERO_BUBBLE, "parallel.virtual_pipeline=2", "checkpointing=full"),
            "checkpointing.mode",
            (
                "zero_bubble splits backward passes, and would recompute a block for its inputs and again "
                "for each of its weights, and keep all of it"
            ),
            ("checkpointing=none", "parallel.schedule=interleaved"),
        ),
        (
            ("parallel=fsdp_pp", *ZERO_BUBBLE, "train.loss=chunked"),
            "train.loss",
            "zero_bubble splits backward passes, and would recompute the logits of each chunk in both parts",
            ("train.loss=full", "parallel.schedule=1f1b"),
        ),
        (
            ("parallel=fsdp_pp", "adapter=qlora"),
            "adapter.name",
            "this version does not split a model with quantised weights into pipeline stages",
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
            "this version combines Ulysses only with data parallelism, not with parallel.tensor",
            ("parallel.tensor=1", "parallel.ulysses=1"),
        ),
        (
            ("parallel=fsdp_tp", "parallel.sequence=false", "train.compile=true", "parallel.async_tensor=true"),
            "parallel.async_tensor",
            "it overlaps the all-gathers and reduce-scatters of sequence parallelism with matrix products",
            ("parallel.tensor=2 parallel.sequence=true", "parallel.async_tensor=false"),
        ),
        (
            ("parallel=fsdp_tp", "parallel.async_tensor=true"),
            "parallel.async_tensor",
            "torch.compile is what fuses these collectives with the matrix products",
            ("train.compile=true", "parallel.async_tensor=false"),
        ),
        (
            ("parallel=fsdp_tp", "train.compile=true", "parallel.async_tensor=true", "hardware=cpu"),
            "parallel.async_tensor",
            "the ranks exchange parts in symmetric memory, which only GPUs have",
            ("parallel.async_tensor=false",),
        ),
        (
            ("parallel=fsdp_tp", "train.compile=true", "parallel.async_tensor=true", "hardware=l40s"),
            "parallel.async_tensor",
            "the ranks exchange parts in symmetric memory, which only GPUs of one node share, by NVLink or xGMI",
            ("parallel.async_tensor=false",),
        ),
        (
            ("parallel.ulysses=2", "model.attention=flash"),
            "model.attention",
            "Ulysses runs torch's attention between its exchanges; any other would see only one rank's tokens",
            ("model.attention=sdpa", "parallel.ulysses=1"),
        ),
        (
            ("parallel.ulysses=2", "train.compile=true"),
            "train.compile",
            "this version does not call Ulysses from compiled blocks",
            ("train.compile=false", "parallel.ulysses=1"),
        ),
        (
            ("backend.reshard_after_forward=3",),
            "backend.reshard_after_forward",
            "a number must divide the 8 ranks over which FSDP2 shards, and be neither 1 nor all of them",
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
            "FSDP2 cannot reshard tensor parallel parameters over a subset of ranks (DTensor)",
            ("backend.reshard_after_forward=true", "parallel.tensor=1"),
        ),
        (
            ("adapter=qlora", "backend.reshard_after_forward=2"),
            "backend.reshard_after_forward",
            "this version cannot reshard quantised weights over a subset of ranks",
            ("backend.reshard_after_forward=true", "adapter=lora"),
        ),
        (
            ("model=mixtral_8x7b", "parallel.expert_tensor=2"),
            "parallel.expert_tensor",
            "backend=fsdp does not split experts over ranks",
            ("parallel.expert_tensor=null", "parallel=ep"),
        ),
        (
            ("parallel=ddp", "parallel.tensor=2"),
            "parallel.tensor",
            "tensor parallelism combines with FSDP2, not with DDP",
            ("parallel=fsdp_tp", "parallel.tensor=1"),
        ),
        (
            ("model=gpt2", "parallel.tensor=2"),
            "parallel.tensor",
            "backend=fsdp splits only models of the family llama, and this is gpt",
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
            "the chunked loss splits the sequence, which parallel.sequence already splits over the ranks",
            ("train.loss=full", "parallel.sequence=false"),
        ),
        (
            ("parallel=ddp", "zero=2"),
            "zero.stage",
            "DDP (parallel.shard=false) shards nothing, but zero.stage=2 asks for sharding",
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
            "FSDP2 offloads only to host memory",
            ("zero.offload_parameters=cpu", "parallel=zero3 zero.max_reuse_distance=0"),
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
            "DDP keeps the whole model on the device; only FSDP2 offloads",
            ("zero.offload_parameters=none", "parallel=fsdp"),
        ),
        (
            ("backend.bucket_view=false",),
            "backend.bucket_view",
            "only DDP reads it",
            ("parallel=ddp", "backend.bucket_view=true"),
        ),
        (
            ("parallel=ddp", "backend.reshard_after_forward=true"),
            "backend.reshard_after_forward",
            "only FSDP2 reads it",
            ("parallel=fsdp", "backend.reshard_after_forward=null"),
        ),
        (
            ("parallel=ddp", "backend.micro_step_sync=false"),
            "backend.micro_step_sync",
            "only FSDP2 reads it",
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
