"""``backend.extra``: arguments that change memory uncounted are refused, by their own reason, and others handed on."""

from __future__ import annotations

import pytest

from launcher.backends.megatron import extra, installed, options
from launcher.backends.megatron.implementation import COUNTED
from launcher.backends.megatron.overheads import graph_inputs
from launcher.backends.megatron.validator import answers, question
from launcher.preflight import findings
from launcher.spec import RunSpec
from launcher.spec.parse import known_keys
from tests.support.estimates import ranks_of
from tests.support.helpers import make_spec, needs
from tests.support.megatron_terms import EXPERTS, MODEL

LOCAL = "+backend.extra.transformer-impl=local"
BASE = ("model=tiny", "hardware=h100_80g", "cluster.gpus_per_node=8", "parallel=tp", "data=synthetic")


def spec_of(*overrides: str) -> RunSpec:
    return make_spec(*BASE, *overrides)


@pytest.mark.parametrize(
    ("argument", "rule", "way"),
    [
        ("fp32-residual-connection=true", "it uses buffers that are not counted", None),
        ("activation-offload-fraction=0.5", "more activations would stay on the GPU than is counted", None),
        ("distribute-saved-activations=true", "backward would need other saved tensors", "parallel.sequence=true"),
        ("rampup-batch-size=[8,8,100]", "megatron-core 0.19.2 ignores it", None),
        ("moe-expert-capacity-factor=2.0", "experts would take more tokens than an even share", None),
        ("use-torch-fsdp2=true", "torch's FSDP2 would do the sharding", "parallel=fsdp"),
        ("spec=[mine,layers]", "it would change the model to one that is not counted", None),
    ],
)
def test_what_changes_memory_uncounted_is_refused_with_its_reason(argument: str, rule: str, way: str | None) -> None:
    (error,) = findings.errors(spec_of(f"+backend.extra.{argument}"))
    key = argument.partition("=")[0]
    assert error.path == f"backend.extra.{key}"
    assert error.rule.startswith(rule)
    without = f"+backend.extra.{key}=null"
    assert error.way_out == (*([f"{way} {without}"] if way else []), without)


def test_an_argument_that_megatron_does_not_have_is_refused_with_the_nearest_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, typed = "backend.extra.rope-typ", ("model=tiny", "+backend.extra.rope-typ=yarn")
    for installed_here in (None, options.VERSION):
        monkeypatch.setattr(installed, "found_version", lambda found=installed_here: found)
        (error,) = extra.check(make_spec(*BASE, *typed))
        assert (error.path, error.rule) == (key, "megatron-core 0.19.2 has no argument --rope-typ")
        assert error.way_out[0] == "+backend.extra.rope-type=yarn"
        assert error.way_out[-2:] == (f"+{key}=null", "backend.path=path/to/Megatron-LM")
    assert not list(extra.check(make_spec(*BASE, *typed, "backend.path=/megatron")))
    monkeypatch.setattr(installed, "found_version", lambda: "0.19.0")  # Its own parser is asked.
    assert not list(extra.check(make_spec(*BASE, *typed)))


@pytest.mark.parametrize(
    "argument",
    [
        "moe-expert-capacity-factor=1.0",
        "moe-token-dispatcher-type=alltoall",
        "moe-token-dispatcher-type=allgather",
        "attention-dropout=0.1",
        "log-throughput=true",
        "eval-micro-batch-size=1",
        "ckpt-format=torch_dist",
        "muon-tp-mode=blockwise",
    ],
)
def test_values_that_change_nothing_are_handed_on(argument: str) -> None:
    assert not findings.errors(spec_of(f"+backend.extra.{argument}"))


@pytest.mark.parametrize(
    ("argument", "rule"),
    [
        ("eval-micro-batch-size=64", "evaluation micro-batches would be larger"),
        ("mtp-use-repeated-layer=true", "would share weights that are counted separately"),
        ("create-all-gather-group=true", "it uses buffers that are not counted"),
        ("optimizer-cuda-graph=true", "it uses buffers that are not counted"),
        ("mlp-chunks-for-training=4", "backward would need other saved tensors"),
        ("no-clone-scatter-output-in-embedding=true", "backward would need other saved tensors"),
        ("activation-func-clamp-value=7.0", "backward would need other saved tensors"),
        ("batch-invariant-mode=true", "backward would need other saved tensors"),
        ("disable-jit-fuser=true", "which kernels save more than is counted"),
        ("moe-shared-expert-overlap=true", "the shared experts would keep the sequence of all tensor parallel ranks"),
        ("muon-scalar-optimizer=lion", "are counted with AdamW's moments"),
        ("muon-tp-mode=duplicated", "the step would gather whole matrices"),
        ("save-activations-interval=10", "it would use host memory that is not counted"),
        ("ckpt-format=torch", "host memory is counted for checkpoints that all ranks write"),
        ("nccl-communicator-config-path=mine.yaml", "communicators would have other channels"),
    ],
)
def test_arguments_that_change_memory_uncounted_are_refused(argument: str, rule: str) -> None:
    (error,) = findings.errors(spec_of(f"+backend.extra.{argument}"))
    assert rule in error.rule


def test_the_dropout_of_scores_in_full_is_the_models() -> None:
    eager = ("model.attention=eager", "+backend.extra.attention-dropout=0.1")
    assert [error.path for error in findings.errors(spec_of(*eager))] == ["backend.extra.attention-dropout"]
    assert not findings.errors(spec_of(*eager, "model.dropout=0.1"))


def test_no_argument_has_two_classes_and_all_settings_exist() -> None:
    names = [name for table in (options.NO_MEMORY, options.REFUSED) for row in table.values() for name in row.split()]
    assert len(names) == len(set(names)) > 300
    assert not set(names) & (set(options.SETTINGS) | COUNTED)
    assert set(options.SETTINGS.values()) <= known_keys()
    assert {*options.INSTEAD, *options.LET_THROUGH} <= {
        name for row in options.REFUSED.values() for name in row.split()
    }


def test_refused_arguments_that_change_nothing_of_this_run_are_handed_on() -> None:
    assert not list(extra.check(spec_of("parallel.tensor=1", "+backend.extra.moe-shared-expert-overlap=true")))
    assert not list(extra.check(spec_of("hardware=cpu", "+backend.extra.disable-jit-fuser=true")))


def test_the_kernel_that_weights_a_squared_relu_saves_the_activation_once() -> None:
    """``WeightedSquaredReLUFunction`` saves its input alone, beside the product that the next linear reads."""
    words = (*EXPERTS, "model.hidden_act=squared_relu", "hardware=h100_80g")
    kernel = "+backend.extra.use-fused-weighted-squared-relu=true"
    plain, fused = (
        sum(
            t.bytes
            for t in ranks_of(make_spec(*MODEL, *w))[0].terms
            if t.pile == "activations" and "block_backward" in t.moments
        )
        for w in (words, (*words, kernel))
    )
    layers, tokens, chosen, width = 12, 4 * 1024, 2, 512
    assert plain - fused == layers * tokens * chosen * width * 2


def test_a_rotation_without_its_kernel_saves_cosines_and_sines_of_queries_and_of_keys_in_each_layer() -> None:
    """``_apply_rotary_pos_emb_bshd`` of ``rope_utils.py`` makes both anew, for all sequences at once."""
    plain, fused = (
        sum(
            t.bytes
            for t in ranks_of(make_spec(*MODEL, *w))[0].terms
            if t.pile == "activations" and "block_backward" in t.moments
        )
        for w in (("+backend.extra.no-rope-fusion=true",), ())
    )
    layers, tokens, head, size = 12, 1024, 64, 2
    assert plain - fused == layers * tokens * head * size * 4


GRAPHS = ("train.cuda_graphs=attention", "parallel.tensor=2", "train.micro_batch_size=2")


def test_cuda_graphs_keep_the_inputs_of_every_layer_and_micro_batch_in_flight() -> None:
    pipeline = (
        "parallel=pp",
        "model.num_hidden_layers=8",
        "train.gradient_accumulation=8",
        *GRAPHS,
        "parallel.tensor=1",
    )
    for words, n in ((GRAPHS, 4), (pipeline, 4 * 2)):
        rank = ranks_of(spec_of(*words))[0].model
        (term,) = graph_inputs(rank)
        h, b, s = rank.engine.size * rank.spec.model.hidden_size * rank.view.residual, 2, rank.spec.sequence_length
        assert term.bytes == n * (h * rank.tokens + b * s * s)
    assert not list(graph_inputs(ranks_of(spec_of())[0].model))


@pytest.mark.thorough
def test_megatrons_own_validator_takes_the_graphs_that_are_translated() -> None:
    needs("megatron.core", "the validator is megatron-core's, of the extra 'megatron'")
    assert answers([question(spec_of(*GRAPHS)), question(spec_of(*GRAPHS, "train.allocator=expandable"))]) == [None] * 2


@pytest.mark.parametrize(
    "words",
    [
        ("hardware=cpu", "precision=bf16"),
        ("+backend.extra.transformer-impl=local",),
        ("checkpointing=full",),
        ("zero=3", "parallel.tensor=1", "parallel.sequence=false"),
        ("backend.path=/megatron",),
    ],
)
def test_cuda_graphs_are_refused_where_nobody_captures_or_counts_them(words: tuple[str, ...]) -> None:
    assert "train.cuda_graphs" in {error.path for error in findings.errors(spec_of(*GRAPHS, *words))}


@pytest.mark.parametrize("value", ["abc", "2.5", "true", "-1"])
@pytest.mark.parametrize(
    "argument",
    ["make-vocab-size-divisible-by", "microbatch-group-size-per-virtual-pipeline-stage", "wgrad-deferral-limit"],
)
def test_a_word_is_refused_where_the_estimate_reads_a_number(argument: str, value: str) -> None:
    key = f"backend.extra.{argument}"
    deferred = "+backend.extra.defer-embedding-wgrad-compute=true"
    stages = ("parallel.pipeline=4", "parallel.virtual_pipeline=3", "train.global_batch_size=64")
    longer = "model.max_position_embeddings=1024"
    (error,) = findings.errors(make_spec(*MODEL, longer, *stages, deferred, f"+{key}={value}"))
    assert (error.path, error.way_out) == (key, (f"+{key}=null",))
    assert error.rule == f"must be a whole number of at least {0 if 'limit' in argument else 1}"


def test_only_arguments_that_the_estimate_does_not_read_are_called_uncounted() -> None:
    spec = make_spec(*MODEL, LOCAL, "+backend.extra.rope-type=yarn")
    (warning,) = extra.warnings(spec)
    assert warning.rule == (
        "passed to Megatron-LM unchanged and checked only there; no memory depends on it: --rope-type"
    )
    (unknown,) = extra.warnings(make_spec(*MODEL, LOCAL, "backend.path=/megatron", "+backend.extra.of-next-year=1"))
    assert "unclassified" in unknown.rule
    assert unknown.rule.endswith(": --of-next-year")
    assert list(extra.warnings(make_spec(*MODEL, LOCAL))) == []
