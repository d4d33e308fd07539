"""What Megatron-core and Transformer Engine hold beside the model states, by their sources."""

from __future__ import annotations

import pytest

from launcher.backends.megatron import extra
from launcher.backends.megatron.traits import execution
from launcher.estimate.memory import activations, device
from launcher.estimate.rank.stages import chunk_sizes, flow_of, in_flight
from launcher.estimate.strategies import pipeline
from launcher.preflight import findings
from tests.support.estimates import ranks_of
from tests.support.helpers import make_spec
from tests.support.megatron_terms import EXPERTS, MIB, MODEL, megabytes, terms_of

LOCAL = "+backend.extra.transformer-impl=local"


@pytest.mark.parametrize(
    ("hardware", "printed"),
    [("a100_80g", 4_194_304), ("l40s", 4_194_304), ("h100_80g", 33_554_432), ("b200", 33_554_432)],
)
def test_the_workspace_of_transformer_engine_is_32_mib_from_hopper_on_and_4_before(hardware: str, printed: int) -> None:
    terms = terms_of(f"hardware={hardware}")
    assert megabytes(terms, "workspaces of Transformer Engine", "idle") * MIB == printed


def test_grouped_experts_have_four_workspaces_more_one_for_each_stream() -> None:
    assert megabytes(terms_of(*EXPERTS, "hardware=h100_80g"), "workspaces of Transformer Engine", "idle") == 5 * 32
    one_by_one = terms_of(*EXPERTS, "hardware=h100_80g", "+backend.extra.moe-grouped-gemm=false")
    assert megabytes(one_by_one, "workspaces of Transformer Engine", "idle") == 32


def test_products_that_overlap_with_communication_have_three_workspaces_beside_that_of_the_others() -> None:
    terms = terms_of("parallel.tensor=2", "hardware=h100_80g", "+backend.extra.tp-comm-overlap=true")
    assert megabytes(terms, "workspaces of Transformer Engine", "idle") == (1 + 3) * 32


def test_overlapped_tensor_parallel_communication_has_ten_buffers_of_a_micro_batch() -> None:
    words = ("parallel.tensor=2", "hardware=h100_80g", "+backend.extra.tp-comm-overlap=true")
    assert megabytes(terms_of(*words), "user buffers", "idle") * MIB == 10 * 2 * 512 * 4096


@pytest.mark.parametrize(
    ("ranks", "sms", "hidden", "nvlink", "network"),
    [(2, 20, 4096, 52_470_272, 0), (8, 20, 7168, 335_709_824, 0), (32, 24, 7168, 453_210_240, 201_628_416)],
)
def test_deepeps_buffers_are_what_its_own_functions_ask_for(
    ranks: int, sms: int, hidden: int, nvlink: int, network: int
) -> None:
    """Printed by ``Config`` of sgl-deep-ep 0.1.2, with DeepEP's own configuration for so many ranks."""
    experts = (*EXPERTS, "model.num_experts=32", f"model.hidden_size={hidden}", f"parallel.expert={ranks}")
    world = ("hardware=h100_80g", f"cluster.nodes={-(-ranks // 8)}", f"cluster.gpus_per_node={min(ranks, 8)}")
    flex = ("+backend.extra.moe-token-dispatcher-type=flex", f"+backend.extra.moe-flex-dispatcher-num-sms={sms}")
    found = [term.bytes for term in terms_of(*experts, *world, *flex) if term.what.startswith("DeepEP's buffers")]
    assert found == [nvlink, network][: len(found)]
    assert sum(found) == nvlink + network
    spec = make_spec(*MODEL, *experts, *world, *flex, "+backend.extra.moe-flex-dispatcher-backend=hybridep")
    assert [w.rule for w in extra.warnings(spec) if "not counted; DeepEP's are" in w.rule]


def test_local_layers_meet_transformer_engine_in_the_router_of_experts_alone() -> None:
    assert megabytes(terms_of(LOCAL), "workspaces of Transformer Engine", "idle") == 0
    assert megabytes(terms_of(LOCAL, *EXPERTS), "workspaces of Transformer Engine", "idle") == 4


def test_local_layers_step_by_torchs_lists_unless_a_fused_adamw_is_declared() -> None:
    elements = sum(t.bytes for t in terms_of(LOCAL) if t.pile == "master_weights" and "step" in t.moments) // 4
    assert megabytes(terms_of(LOCAL), "foreach lists of the optimizer", "step") * MIB == 4 * elements
    for words in ((), (LOCAL, "optimizer.fused=true")):
        assert megabytes(terms_of(*words), "foreach lists of the optimizer", "step") == 0
        assert execution(make_spec(*MODEL, *words)).fused_optimizer
    assert not execution(make_spec(*MODEL, LOCAL)).fused_optimizer
    own, masked = execution(make_spec(*MODEL, LOCAL)), "+backend.extra.no-masked-softmax-fusion=false"
    assert (own.attention, own.fused_rotary) == ("masked_in_place", False)
    assert execution(make_spec(*MODEL, LOCAL, masked)).attention == "fused_softmax"
    (error,) = (e for e in findings.errors(make_spec(*MODEL, "optimizer.fused=true")) if e.path == "optimizer.fused")
    assert error.way_out == ("optimizer.fused=null",)


@pytest.mark.parametrize(("tensor", "printed"), [(1, 64), (2, 32), (4, 16)])
def test_local_attention_keeps_a_buffer_for_its_scores_b_a_s_squared_over_t(tensor: int, printed: int) -> None:
    terms = terms_of(LOCAL, f"parallel.tensor={tensor}")
    assert megabytes(terms, "global buffer", "idle") == printed


def test_the_output_projection_gathers_the_sequence_into_a_permanent_buffer() -> None:
    terms = terms_of("parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=2")
    assert megabytes(terms, "global buffer", "idle") == 2 * 512 * 4096 / MIB
    first = terms_of("parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=2", stage=0)
    assert megabytes(first, "global buffer", "idle") == 0


def test_allgather_keeps_the_tokens_of_all_ranks_of_experts() -> None:
    words = (*EXPERTS, "parallel.expert=2", "cluster.gpus_per_node=8")
    assert megabytes(terms_of(*words), "global buffer", "idle") == 0
    gathered = terms_of(*words, "+backend.extra.moe-token-dispatcher-type=allgather")
    assert megabytes(gathered, "global buffer", "idle") == 2 * 2 * 512 * 4096 / MIB


def test_a_shared_expert_has_a_width_of_its_own_in_megatron_alone() -> None:
    words = (*EXPERTS, "+model.extra.shared_width=256")
    assert not findings.errors(make_spec("backend=megatron", *words))
    width = 3 * 512 * 256
    more, without = (sum(t.bytes for t in terms_of(*w) if t.pile == "parameters") for w in (words, EXPERTS))
    assert more - without == 2 * 12 * width
    (error,) = (e for e in findings.errors(make_spec("parallel=fsdp", *words)) if e.path == "model.extra")
    assert error.way_out[-1] == "model.extra={}"


@pytest.mark.parametrize(("chunks", "printed"), [(1, 8), (3, 24)])
def test_each_model_chunk_keeps_its_last_input_and_the_gradient_of_it(chunks: int, printed: int) -> None:
    overrides = ("parallel.pipeline=4", f"parallel.virtual_pipeline={chunks}", "train.global_batch_size=64")
    assert megabytes(terms_of(*overrides), "model chunks and their gradients", "idle") == printed
    assert megabytes(terms_of(*overrides), "model chunks and their gradients", "loss") == 0
    assert megabytes(terms_of(*overrides, stage=0), "model chunks and their gradients", "idle") == 0


def test_transformer_engine_keeps_an_unread_gradient_of_each_shape() -> None:
    attention, mlp, output = 4 * 512 * 512, 3 * 2048 * 512, 50304 * 512
    printed = 2 * (attention + mlp + output + 2 * 512) / MIB
    assert megabytes(terms_of(), "weight of each shape", "idle") == pytest.approx(printed)
    unfused = "+backend.extra.no-gradient-accumulation-fusion=true"
    assert megabytes(terms_of(unfused), "weight of each shape", "idle") == 0


def test_fp16_gradients_are_held_in_fp32_until_the_next_step() -> None:
    rank = ranks_of(make_spec(*MODEL, "precision=fp16"))[0]
    found = [term for term in rank.terms if "gradients of this rank" in term.formula]
    assert [term.bytes for term in found] == [4 * rank.model.elements.optimizer]
    assert "idle" in found[0].moments
    assert "forward" not in found[0].moments


def test_a_batch_brings_no_attention_mask_unless_it_is_asked_for() -> None:
    asked = "+backend.extra.no-create-attention-mask-in-dataloader=false"
    assert megabytes(terms_of(), "positions", "loss") == 0
    assert megabytes(terms_of(asked), "positions", "loss") == 4 * 1024 * 1024 / MIB
    assert megabytes(terms_of(asked, "parallel.context=2"), "positions", "loss") == 4 + 2


SAVED_BY_FLASH = 2 * 512
DETERMINISTIC = "+cluster.environment.NVTE_ALLOW_NONDETERMINISTIC_ALGO='0'"


@pytest.mark.parametrize(
    ("overrides", "more"),
    [
        (("hardware=h100_80g",), 0),
        (("hardware=b200",), 0),
        (("hardware=b200", DETERMINISTIC), SAVED_BY_FLASH),
        (("hardware=a100_80g",), SAVED_BY_FLASH),
        (("hardware=h100_80g", "model.attention=flash"), SAVED_BY_FLASH),
        (("hardware=a100_80g", "train.micro_batch_size=1"), 0),
    ],
)
def test_flash_attn_keeps_its_output_twice_and_runs_where_cudnn_does_not(overrides: tuple[str, ...], more: int) -> None:
    block = ranks_of(make_spec(*MODEL, *overrides))[0].model.blocks[0]
    assert sum(row.bytes for row in block.saved if "as its kernel made it" in row.name) == more


@pytest.mark.parametrize("overrides", [(LOCAL,), ("hardware=v100_32g", "precision=fp16")])
def test_local_layers_and_gpus_before_ampere_keep_the_scores(overrides: tuple[str, ...]) -> None:
    block = ranks_of(make_spec(*MODEL, *overrides))[0].model.blocks[0]
    assert [row.bytes for row in block.saved if row.name == "scores"] == [2 * 8 * 1024]


WIDE = (LOCAL, "+backend.extra.attention-softmax-in-fp32=true", "+backend.extra.no-masked-softmax-fusion=true")


@pytest.mark.parametrize(("dropout", "per_score"), [(0.1, 4 + 1 + 2), (0.0, 4 + 2)])
def test_a_softmax_in_fp32_without_its_kernel_is_saved_beside_the_factor_of_the_values(
    dropout: float, per_score: int
) -> None:
    block = ranks_of(make_spec(*MODEL, *WIDE, f"model.dropout={dropout}"))[0].model.blocks[0]
    assert [row.bytes for row in block.saved if row.name == "scores"] == [per_score * 8 * 1024]


@pytest.mark.parametrize(("multiple", "rows"), [(128, 50432), (3232, 51712)])
def test_the_vocabulary_is_padded_to_the_multiple_that_is_asked_for(multiple: int, rows: int) -> None:
    padding = (f"+backend.extra.make-vocab-size-divisible-by={multiple}", "parallel.tensor=2")
    assert ranks_of(make_spec(*MODEL, *padding))[0].model.vocabulary == rows


@pytest.mark.parametrize(("limit", "number"), [(0, 3), (2, 2)])
def test_deferred_gradients_of_the_output_projection_wait_for_the_end(limit: int, number: int) -> None:
    deferring = ("+backend.extra.defer-embedding-wgrad-compute=true", f"+backend.extra.wgrad-deferral-limit={limit}")
    terms = terms_of(*deferring, "parallel.tensor=2", "parallel.pipeline=2")
    one = 2 * (50432 // 2 + 512) * 4096 / MIB
    assert megabytes(terms, "gradients of logits", "loss") == pytest.approx(number * one)
    assert megabytes(terms, "inputs of the stage", "loss") == 2 * 2 * 2 * 512 * 4096 / MIB
    assert megabytes(terms_of(*deferring), "gradients of logits", "loss") == 0


@pytest.mark.parametrize(
    ("overrides", "printed"),
    [
        (("model.hidden_act=silu",), 2 * (512 + 2 * 512 + 512)),
        (("model.hidden_act=gelu",), 2 * (512 + 512 + 512 + 512)),
        (("model.hidden_act=gelu", "+backend.extra.deterministic-mode=true"), 2 * (512 + 3 * 512 + 512)),
        (
            (
                "model.hidden_act=gelu",
                "+backend.extra.deterministic-mode=true",
                "+backend.extra.moe-permute-fusion=true",
            ),
            2 * (512 + 3 * 512),
        ),
    ],
)
def test_an_expert_saves_its_input_its_mlp_and_what_the_routers_weight_multiplies(
    overrides: tuple[str, ...], printed: int
) -> None:
    block = ranks_of(make_spec(*MODEL, *EXPERTS, *overrides))[0].model.blocks[0]
    assert sum(row.bytes for row in block.saved if row.share.startswith("routed")) == printed


@pytest.mark.parametrize(
    ("hardware", "printed"), [("a100_80g", 8_519_680), ("h100_80g", 33_554_432), ("b200", 33_554_432)]
)
def test_a_workspace_of_cublas_is_32_mib_from_hopper_on(hardware: str, printed: int) -> None:
    assert megabytes(terms_of(f"hardware={hardware}"), "cuBLAS workspaces", "idle") * MIB == 2 * printed


def test_transformer_engines_loss_writes_its_gradient_over_the_logits() -> None:
    te = "+backend.extra.cross-entropy-fusion-impl=te"
    rank = ranks_of(make_spec(*MODEL, "train.loss=fused", te))[-1]
    made = [term.bytes for term in rank.terms if term.what == "logits" and "loss" in term.moments]
    assert made == [2 * rank.model.vocabulary * rank.model.tokens]
    hidden = [term.bytes for term in rank.terms if term.what == "gradient of the hidden states"]
    assert hidden == [2 * 512 * rank.model.tokens]
    refused = make_spec(*MODEL, "train.loss=fused", te)
    found = [error for error in extra.check(refused) if error.path.startswith("backend.extra")]
    assert [error.rule for error in found] == [
        "megatron-core 0.19.2 refuses Transformer Engine's loss, which older checkouts have"
    ]
    assert not list(extra.check(make_spec(*MODEL, "train.loss=fused", te, "backend.path=/older")))


def test_heads_that_context_ranks_exchange_keep_attentions_output_twice() -> None:
    words = (*MODEL, "hardware=h100_80g", "parallel.context=2")
    rings, exchanged = (
        ranks_of(make_spec(*words, f"+backend.extra.cp-comm-type={way}"))[0].model.blocks[0] for way in ("p2p", "a2a")
    )
    assert sum(row.bytes for row in exchanged.saved) - sum(row.bytes for row in rings.saved) == 2 * 512


@pytest.mark.parametrize(("stage", "forward", "later"), [(0, 1, 0), (1, 3, 1), (3, 2, 1)])
def test_a_full_pipeline_still_names_its_last_messages(stage: int, forward: int, later: int) -> None:
    terms = terms_of("parallel.pipeline=4", "train.global_batch_size=64", stage=stage)
    message = 2 * 512 * 4 * 1024 / MIB
    assert {megabytes(terms, "messages", moment) for moment in ("forward", "loss")} == {forward * message}
    assert megabytes(terms, "messages", "loss_backward") == later * message
    few = terms_of("parallel.pipeline=4", "train.global_batch_size=8", "cluster.gpus_per_node=4", stage=stage)
    assert megabytes(few, "messages", "forward") == (forward * message if stage == 3 else 0)


@pytest.mark.parametrize(
    ("overrides", "copies"),
    [((), 3), (("parallel.expert=4",), 4), (("parallel.expert=8",), 3)],
)
def test_a_layer_with_experts_ends_with_copies_of_the_routed_tokens(overrides: tuple[str, ...], copies: int) -> None:
    terms = terms_of("hardware=h100_80g", *EXPERTS, *overrides)
    routed = 2 * 2 * 512 * 4 * 1024 / MIB
    assert megabytes(terms, "routed tokens", "forward") == copies * routed
    assert not megabytes(terms, "routed tokens", "loss")


@pytest.mark.parametrize(("width", "more"), [(512, 512 - 512 // 2), (2048, 0)])
def test_a_gated_mlps_own_backward_pass_comes_after_the_gathered_one(width: int, more: int) -> None:
    split = ("hardware=h100_80g", "parallel.tensor=2", "parallel.sequence=true", f"model.intermediate_size={width}")
    terms, tokens = terms_of(*split), 4 * 1024
    assert megabytes(terms, "gathered input", "forward") == 2 * 512 * tokens / MIB
    assert megabytes(terms, "gathered input", "block_backward") == 2 * more * tokens / MIB


def test_unread_gradients_are_of_each_shape_that_some_layer_has() -> None:
    alike, mixed = (
        megabytes(terms_of("hardware=h100_80g", *EXPERTS, f"model.first_dense_layers={dense}"), "unread", "loss")
        for dense in (0, 1)
    )
    assert mixed - alike == 2 * 3 * 512 * 2048 / MIB


COUNTED = (
    "model.num_hidden_layers=6",
    "parallel.pipeline=4",
    "parallel.virtual_pipeline=2",
    "train.global_batch_size=64",
    "+backend.extra.account-for-embedding-in-pipeline-split=true",
    "+backend.extra.account-for-loss-in-pipeline-split=true",
)


def test_a_split_that_counts_embedding_and_loss_leaves_their_chunks_a_layer_less() -> None:
    spec = make_spec(*MODEL, *COUNTED)
    assert chunk_sizes(spec) == (0, 1, 1, 1, 1, 1, 1, 0)
    # The last stage runs its first chunk four times before its second, which has no layer.
    assert in_flight(flow_of(spec), 3) == 4


def test_layers_that_divide_with_the_embedding_and_the_loss_are_as_megatron_takes_them() -> None:
    """Llama 3 405B: 126 layers on 16 stages of eight chunks, the first one with the embedding alone."""
    sizes = ("model.num_hidden_layers=126", "parallel.pipeline=16", "parallel.virtual_pipeline=8")
    words = (*MODEL, *COUNTED, *sizes, "parallel.schedule=interleaved", "train.global_batch_size=64")
    assert not list(pipeline.check(make_spec(*words)))
    assert chunk_sizes(make_spec(*words)) == (0, *[1] * 126, 0)
    refused = [error.path for error in pipeline.check(make_spec(*words, "model.num_hidden_layers=128"))]
    assert refused == ["parallel.pipeline"]


def test_the_named_size_of_a_stage_is_shared_out_among_its_chunks() -> None:
    sizes = ("parallel.first_stage_layers=2", "parallel.last_stage_layers=2")
    spec = make_spec(*MODEL, "parallel.pipeline=4", "parallel.virtual_pipeline=2", *sizes)
    assert chunk_sizes(spec) == (1, 2, 2, 1, 1, 2, 2, 1)


INTERLEAVED = ("parallel.pipeline=4", "parallel.virtual_pipeline=3", "train.global_batch_size=64")


@pytest.mark.parametrize(
    ("extra", "chunks"),
    [
        ((), 2 * 4 + 1),
        (("+backend.extra.microbatch-group-size-per-virtual-pipeline-stage=5",), 2 * 5 + 1),
        (("+backend.extra.overlap_moe_expert_parallel_comm=true",), 2 * 4 + 1 + 1),
    ],
)
def test_the_last_stage_warms_up_with_v_minus_1_rounds_of_chunks(extra: tuple[str, ...], chunks: int) -> None:
    rank = ranks_of(make_spec(*MODEL, *INTERLEAVED, *extra))[-1]
    assert rank.model.view.in_flight * 3 == chunks


ROUND = "+backend.extra.microbatch-group-size-per-virtual-pipeline-stage"


@pytest.mark.parametrize(
    ("size", "batch", "legal"),
    [(6, 40, True), (6, 32, False), (6, 48, True), (3, 48, False), (16, 32, False), (4, 32, True), (4, 40, False)],
)
def test_rounds_have_the_pipelines_length_at_least_and_so_has_the_last(size: int, batch: int, legal: bool) -> None:
    """``forward_backward_pipelining_with_interleaving`` of Megatron-core refuses others at the first step."""
    stages = ("parallel.pipeline=4", "parallel.virtual_pipeline=3", "train.micro_batch_size=2")
    found = list(pipeline.check(make_spec(*MODEL, *stages, f"train.global_batch_size={batch}", f"{ROUND}={size}")))
    assert bool(found) is not legal, found


def test_a_round_of_another_length_is_named_where_it_does_not_come_out_even() -> None:
    stages = ("parallel.pipeline=4", "parallel.virtual_pipeline=3", "train.micro_batch_size=2")
    (error,) = pipeline.check(make_spec(*MODEL, *stages, "train.global_batch_size=32", f"{ROUND}=6"))
    assert error.rule == (
        "the interleaved schedule needs rounds of 6 micro-batches"
        " (--microbatch-group-size-per-virtual-pipeline-stage), each, also the last, of at least pipeline 4,"
        " and an optimizer step has 8"
    )
    assert error.way_out == ("train.global_batch_size=24", "train.global_batch_size=48", "parallel.virtual_pipeline=1")


@pytest.mark.parametrize(
    ("method", "layers", "inputs", "whole"),
    [("block", 1, 3, 9), ("block", 2, 6, 6), ("block", 4, 12, 0), ("uniform", 1, 12, 0), ("uniform", 3, 6, 0)],
)
def test_each_model_chunk_counts_its_recomputed_layers_anew(method: str, layers: int, inputs: int, whole: int) -> None:
    """Three chunks of four layers each, with one input a checkpointed layer or group (``core/recompute.py``)."""
    stages = ("parallel.pipeline=2", "parallel.virtual_pipeline=3", "model.num_hidden_layers=24")
    full = ("checkpointing=full", f"checkpointing.method={method}", f"checkpointing.layers={layers}")
    rank = ranks_of(make_spec(*MODEL, *stages, *full))[0].model
    (kind,) = rank.blocks
    expected = inputs * 2 * 512 + whole * rank.token_bytes(kind.saved)
    assert kind.count * activations.kept_per_token(rank, kind) == expected


CPU = (*MODEL[:1], "backend=megatron", "hardware=cpu", "precision=fp32", "parallel=tp", "cluster.gpus_per_node=1")


def test_a_block_on_the_cpu_keeps_what_hooks_on_saved_tensors_saw() -> None:
    """Two norms of input, values and output, rotations, attention of eight heads, its mask, an MLP of six tensors."""
    words = (
        "parallel.tensor=1 parallel.sequence=false model.num_attention_heads=8 model.num_key_value_heads=4"
        " model.hidden_size=512 model.head_dim=null model.intermediate_size=1376 train.sequence_length=512"
        " model.max_position_embeddings=512 train.micro_batch_size=1 train.global_batch_size=4"
    )
    rank = ranks_of(make_spec(*CPU, *words.split()))[0].model
    norms, rotations, scores, mlp = 2 * 3 * 2048, 4 * 256, 8 * 512 * 4, 11008 + 3 * 5504
    assert rank.token_bytes(rank.blocks[0].saved) == norms + rotations + 4 * 2048 + scores + 512 + mlp


def test_the_rest_of_a_segment_stays_with_the_tensor_where_it_is_at_most_a_mebibyte() -> None:
    """Of ``gpt3_mcore_te_tp4_pp1_dist_optimizer``: 0.53 MiB, which its static bytes were above the sum of tensors."""
    assert [device.unsplit(size) for size in (9 * MIB, 10 * MIB, 11 * MIB, 11 * MIB - 512)] == [0, 0, MIB, 0]
    terms = terms_of("parallel.tensor=4", "zero=1", "hardware=h100_80g")
    assert 0 <= megabytes(terms, "rests of segments", "idle") <= 2
