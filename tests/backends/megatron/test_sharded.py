"""Megatron-FSDP: its formats as arguments, and what its ranks hold beside their shards."""

from __future__ import annotations

import pytest

from launcher.backends.megatron.check import check
from launcher.backends.megatron.checkout import unreadable
from launcher.backends.megatron.implementation import dtypes
from launcher.backends.megatron.sharded import overheads
from launcher.backends.megatron.traits import engine, reshardable
from launcher.backends.megatron.translate import argument_list, arguments
from launcher.estimate.memory.moments import Moment
from launcher.importers.megatron import read
from launcher.preflight import findings
from launcher.spec import edit
from tests.support.estimates import ranks_of
from tests.support.foreign_files import SIZES
from tests.support.helpers import make_spec
from tests.support.megatron_terms import EXPERTS, MIB, megabytes, terms_of

EIGHT_B = (
    "model=llama3_8b",
    "parallel=tp",
    "parallel.tensor=1",
    "parallel.sequence=false",
    "hardware=h100_80g",
    "cluster.gpus_per_node=8",
)
BLOCK, ROOT = 218_112_000, 2 * 128_256 * 4096 + 4096
"""Parameters of one layer of Llama-3 8B, and of its embedding, last norm and output projection."""


def rank(*overrides: str, formula: str, moment: Moment) -> int:
    """Bytes at one moment of the terms whose formula has these words."""
    terms = ranks_of(make_spec(*EIGHT_B, *overrides))[0].terms
    return sum(term.bytes for term in terms if formula in term.formula and moment in term.moments)


@pytest.mark.parametrize(
    ("overrides", "parameters", "gradients"),
    [
        (("precision=bf16",), "fp32", "fp32"),
        (
            ("precision=bf16", *(f"precision.{key}=bf16" for key in ("gradients", "accumulate", "reduce"))),
            "fp32",
            "bf16",
        ),
        (("precision=fp16",), "fp32", "fp16"),
        (("precision=fp32",), "auto", "fp32"),
    ],
)
@pytest.mark.parametrize("stage", [2, 3])
def test_megatron_fsdp_is_told_the_formats_of_its_main_parameters_and_gradients(
    stage: int, overrides: tuple[str, ...], parameters: str, gradients: str
) -> None:
    found = arguments(make_spec(*EIGHT_B, f"zero={stage}", *overrides))
    assert found["megatron-fsdp-main-params-dtype"] == parameters
    assert found["megatron-fsdp-main-grads-dtype"] == gradients
    assert found["megatron-fsdp-grad-comm-dtype"] == "auto"


def test_the_distributed_optimizer_gets_no_argument_of_megatron_fsdp() -> None:
    assert not [name for name in arguments(make_spec(*EIGHT_B, "zero=1")) if "fsdp" in name and "ckpt" not in name]


@pytest.mark.parametrize(
    ("words", "format_"),
    [
        ("--bf16 --use-megatron-fsdp", "bf16"),
        ("--bf16 --use-megatron-fsdp --megatron-fsdp-main-grads-dtype fp32", "fp32"),
        ("--fp16 --use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "fp16"),
    ],
)
def test_an_argument_list_that_leaves_the_gradients_to_megatron_fsdp_has_them_in_the_parameters_format(
    words: str, format_: str
) -> None:
    assert f"precision.accumulate={format_}" in read(f"{SIZES} {words}", "args.txt").overrides


def test_formats_of_megatron_fsdp_that_have_no_setting_are_named() -> None:
    words = "--bf16 --use-megatron-fsdp --megatron-fsdp-main-params-dtype auto --megatron-fsdp-grad-comm-dtype bf16"
    found = read(f"{SIZES} {words} --megatron-fsdp-main-grads-dtype fp32", "args.txt").left_out
    values = {left.key: left.value for left in found}
    assert values["--megatron-fsdp-main-params-dtype"] == "auto"
    assert values["--megatron-fsdp-grad-comm-dtype"] == "bf16"


def test_fp8_without_bf16_has_fp32_parameters_as_megatron_has() -> None:
    assert "precision.parameters=fp32" in read(f"{SIZES} --fp8-format hybrid", "args.txt").overrides
    spec = make_spec("hardware=h100_80g", "parallel=tp", "precision=fp8", "precision.parameters=fp32", "zero=1")
    assert not findings.errors(spec)
    assert not {"--bf16", "--fp16"} & set(argument_list(spec))
    assert (dtypes(spec).parameters, dtypes(spec).master, engine(spec).size) == ("fp32", None, 4)
    assert dtypes(edit.changed(spec, "zero.stage", 3)).master == "fp32"


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_wait_unreduced_until_a_thousand_million_are_queued(stage: int) -> None:
    words = "wait for their reduction"
    zero = f"zero={stage}"
    assert rank(zero, formula=words, moment="loss_backward") == 0
    assert rank(zero, formula=words, moment="block_backward") == 4 * (128_256 * 4096 + 4096 + BLOCK)
    assert rank(zero, formula=words, moment="first_layer_backward") == 4 * (10**9 + 2 * BLOCK)
    few = "model.num_hidden_layers=1"
    assert rank(zero, few, formula=words, moment="root_backward") == 4 * (BLOCK + ROOT)
    assert rank("zero=1", formula=words, moment="root_backward") == 0


def test_parameters_outside_the_blocks_stay_gathered_at_stage_3() -> None:
    words = "outside the blocks, gathered"
    assert rank("zero=3", formula=words, moment="idle") == 2 * ROOT
    assert rank("zero=3", formula=words, moment="load") == 0
    assert rank("zero=2", formula=words, moment="idle") == 0


@pytest.mark.parametrize(
    ("moment", "blocks"),
    [("forward", 1), ("output", 0), ("block_backward", 4), ("second_layer_backward", 2), ("first_layer_backward", 1)],
)
def test_half_a_thousand_million_parameters_are_gathered_ahead(moment: Moment, blocks: int) -> None:
    assert rank("zero=3", formula="gathered blocks", moment=moment) == blocks * 2 * BLOCK


def test_no_more_blocks_are_gathered_than_there_are() -> None:
    assert rank("zero=3", "model.num_hidden_layers=2", formula="gathered blocks", moment="block_backward") == 4 * BLOCK


def test_the_whole_model_is_built_before_it_is_cut_unless_on_the_meta_device() -> None:
    whole, words = 32 * BLOCK + ROOT, "not yet cut away"
    found = overheads(ranks_of(make_spec(*EIGHT_B, "zero=3"))[0].model)
    assert [term.bytes for term in found if words in term.what] == [2 * (whole - whole // 8)]
    # It takes more than the states that are made later, which so are not counted at that moment.
    assert rank("zero=3", formula="master weights", moment="load") == 0
    meta = "+backend.extra.init-model-with-meta-device=true"
    assert rank("zero=3", meta, formula=words, moment="load") == 0
    assert rank("zero=3", meta, formula="master weights", moment="load") == 4 * whole // 8


def test_a_single_rank_cuts_and_gathers_nothing() -> None:
    terms = ranks_of(make_spec(*EIGHT_B, "zero=3", "cluster.gpus_per_node=1"))[0].terms
    assert not [term for term in terms if "Megatron-FSDP" in term.source]


NARROW = tuple(f"precision.{key}=bf16" for key in ("gradients", "accumulate", "reduce"))


@pytest.mark.parametrize(
    ("overrides", "master", "cast"),
    [
        (("zero=1",), 4, 0),
        (("zero=1", *NARROW), 4, 4),
        (("zero=1", "precision.optimizer_states=bf16"), 2, 0),
        (("zero=1", "precision.optimizer_states=bf16", *NARROW), 2, 0),
        (("zero=1", "precision.master=fp16"), 2, 0),
        (("zero=1", "precision=fp8", "precision.recipe=delayed", "precision.optimizer_states=bf16"), 2, 0),
        (("zero=1", "precision=fp8", "precision.recipe=blockwise", "precision.optimizer_states=bf16"), 4, 0),
        (("zero=3", "precision.optimizer_states=bf16", *NARROW), 4, 0),
        (("zero=3", *NARROW), 4, 4),
    ],
)
def test_the_precision_aware_optimizer_keeps_half_of_the_master_copy_and_casts_no_gradients(
    overrides: tuple[str, ...], master: int, cast: int
) -> None:
    rank = ranks_of(make_spec(*EIGHT_B, "precision=bf16", *overrides))[0]
    held_bytes = sum(term.bytes for term in rank.at("step") if term.pile == "master_weights")
    casts = sum(term.bytes for term in rank.at("step") if "gradients of this rank" in term.formula)
    elements = rank.model.elements.optimizer
    assert (held_bytes, casts) == (master * elements, cast * elements)


def test_instances_of_the_distributed_optimizer_must_divide_the_copies_of_the_experts() -> None:
    run = ("model=mixtral_8x7b", "parallel=ep", "parallel.expert=8", "hardware=h100_80g", "cluster.nodes=2")
    (error,) = check(make_spec(*run, "cluster.gpus_per_node=8", "parallel.replicate=4"))
    assert (error.path, error.found) == ("parallel.replicate", 4)
    assert error.rule == (
        "replicas are instances of the distributed optimizer, which must divide the 2 copies of the experts"
    )
    assert error.way_out == ("parallel.replicate=2", "parallel.replicate=1")
    assert not list(check(make_spec(*run, "cluster.gpus_per_node=8", "parallel.replicate=2")))


def test_a_tied_output_projections_gradient_waits_for_that_of_the_token_table() -> None:
    size, unfused = 4 * 50304 * 512 / MIB, ("precision=fp32", "+backend.extra.no-gradient-accumulation-fusion=true")
    for words, at_the_end in (unfused, 0), ((*unfused, "model.tie_word_embeddings=true"), size):
        assert megabytes(terms_of(*words), "gradient of the output", "loss_backward") == pytest.approx(size)
        assert megabytes(terms_of(*words), "gradient of the output", "root_backward") == pytest.approx(at_the_end)
    assert megabytes(terms_of("precision=fp32"), "gradient of the output", "loss_backward") == 0


CPU = ("model=tiny", "backend=megatron", "hardware=cpu", "precision=fp32", "parallel=tp", "cluster.gpus_per_node=1")


def test_parameters_are_there_twice_while_they_move_into_the_buffer_of_the_distributed_optimizer() -> None:
    """Of a run on two CPU ranks 145.1 MB were measured, of which this counts 140.9: 12 bytes of 11.74 M parameters."""
    rank = ranks_of(make_spec(*CPU, "zero=1"))[0]
    assert rank.allocated("load") == 12 * rank.model.elements.whole
    assert ranks_of(make_spec(*CPU, "zero=0"))[0].allocated("load") == 8 * rank.model.elements.whole
    apart = ranks_of(make_spec(*CPU, *EXPERTS, "zero=1", "parallel.expert=2", "cluster.gpus_per_node=2"))[0]
    last = apart.model.elements.expert  # Of a run with four experts 33,606,016 bytes were measured; this is 384 less.
    assert apart.allocated("load") == 8 * apart.model.elements.whole + 4 * last


def test_a_save_is_the_peak_of_a_run_on_the_cpu_that_saves_and_of_no_other() -> None:
    words = (*CPU, "zero=1", "cluster.gpus_per_node=2", "train.micro_batch_size=1", "train.sequence_length=32")
    saving, other = (
        ranks_of(make_spec(*words, f"save.last={last}", "save.every=null"))[0] for last in ("true", "false")
    )
    assert saving.peak[1] == "checkpoint_save" != other.peak[1]
    counts = saving.model.elements
    assert saving.peak[0] - other.allocated("idle") == 24 * counts.trained + 12 * counts.optimizer


GPUS = ("model=7b", "parallel=tp", "hardware=h100_80g", "cluster.gpus_per_node=4", "train.global_batch_size=8")


@pytest.mark.parametrize(
    ("words", "whole"),
    [
        ((), False),
        (("save.reshardable=true",), True),
        (("precision=fp32",), True),
        (("+backend.extra.transformer-impl=local",), True),
        (("optimizer=sgd", "zero=0"), False),
    ],
)
def test_states_are_saved_whole_where_shards_are_not_read_back_right(words: tuple[str, ...], whole: bool) -> None:
    spec = make_spec(*GPUS, *words)
    assert reshardable(spec) is whole
    assert ("--dist-ckpt-optim-fully-reshardable" in argument_list(spec)) is whole
    assert reshardable(make_spec("model=tiny", "backend=megatron", "hardware=cpu", "precision=bf16"))


def test_other_degrees_are_refused_where_the_shards_were_saved_as_they_are() -> None:
    saved, more = (make_spec(*GPUS, f"parallel.tensor={tensor}") for tensor in (2, 4))
    errors = list(unreadable(saved, more))
    assert [(error.path, error.way_out) for error in errors] == [("parallel.tensor", ("parallel.tensor=2",))]
    assert not [*unreadable(saved, edit.changed(saved, "cluster.nodes", 2))], "the data degree may be another"
    assert not [*unreadable(edit.changed(saved, "save.reshardable", True), more)]


def test_a_checkpoint_with_expert_parallel_ranks_needs_some() -> None:
    """Megatron-core 0.19 then has two optimizers: read by a run with one, KeyError: 'optimizer'."""
    ranks = {n: make_spec("model=mixtral_8x7b", "parallel=ep", f"parallel.expert={n}") for n in (1, 2, 4)}
    for was, now in ((1, 2), (2, 1)):
        [error] = unreadable(ranks[was], ranks[now])
        assert (error.path, error.way_out) == ("parallel.expert", (f"parallel.expert={was}",))
        assert error.rule.endswith("it saves two optimizers, that of the experts apart, and without them one")
    assert not [*unreadable(ranks[2], ranks[4])]
