"""Multi-token prediction and free pipeline layouts: weights, activations, logits, micro-batches, the argument list."""

from __future__ import annotations

from fractions import Fraction

import pytest

from launcher.backends.megatron.translate import argument_list
from launcher.backends.megatron.validator import answers, question
from launcher.estimate import families
from launcher.estimate.memory import logits
from launcher.estimate.rank import counts, stages
from launcher.estimate.rank.counts import parameter_counts
from launcher.estimate.rank.stages import chunk_sizes, flow_of, predicted_in_flight, predicted_layers
from launcher.preflight import findings
from launcher.preflight.assess import assess
from launcher.spec import RunSpec
from tests.support.estimates import ranks_of
from tests.support.helpers import make_spec, needs

BASE = (
    "model=tiny",
    "model.num_hidden_layers=8",
    "hardware=h100_80g",
    "cluster.gpus_per_node=8",
    "parallel=pp",
    "train.gradient_accumulation=8",
    "data=synthetic",
)


def spec_of(*overrides: str) -> RunSpec:
    return make_spec(*BASE, *overrides)


def test_a_layer_has_three_norms_a_projection_of_twice_the_width_and_a_block() -> None:
    without, with_two = spec_of(), spec_of("model.mtp_layers=2")
    family, h = families.of(without.model), without.model.hidden_size
    block = sum(weight.elements for weight in family.block(without.model, 7))
    more = parameter_counts(with_two, family)[0] - parameter_counts(without, family)[0]
    assert more == 2 * (block + 3 * h + 2 * h * h)


def test_the_last_stage_has_these_layers_and_a_copy_of_the_token_table() -> None:
    (first, last), (plain, plain_last) = (
        [one.model for one in ranks_of(spec_of(*more))] for more in (("model.mtp_layers=1",), ())
    )
    assert first.elements == plain.elements
    assert [kind.name for kind in last.blocks] == [*(kind.name for kind in plain_last.blocks), counts.FURTHER]
    assert last.embedding.whole == plain.embedding.whole
    assert plain_last.embedding.whole == 0


def test_what_a_layer_saves_is_its_blocks_and_the_joined_inputs() -> None:
    last = ranks_of(spec_of("model.mtp_layers=1"))[-1].model
    block, further = last.blocks
    h = last.engine.size * last.spec.model.hidden_size
    assert last.token_bytes(further.saved) - last.token_bytes(block.saved) == 3 * h + 2 * h
    recomputed = ranks_of(spec_of("model.mtp_layers=1", "checkpointing=full"))[-1].model.blocks[-1]
    assert last.token_bytes(recomputed.outside) == 3 * h


def test_the_softmax_of_each_further_token_waits_beside_the_logits() -> None:
    rows = [
        {
            (term.moments, term.instant): term.bytes
            for term in logits.logits(ranks_of(spec_of(f"model.mtp_layers={more}"))[-1].model)
            if term.what == "logits"
        }
        for more in (0, 2)
    ]
    rank = ranks_of(spec_of())[-1].model
    assert {b - a for a, b in zip(rows[0].values(), rows[1].values(), strict=True)} == {
        2 * 4 * rank.vocabulary * rank.tokens
    }


def test_further_tokens_take_time() -> None:
    found = [assess(spec_of(f"model.mtp_layers={more}"), search=None).speed for more in (0, 1)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].step_seconds < found[1].step_seconds


@pytest.mark.parametrize(
    ("text", "sizes", "predicted_"),
    [
        ("Et*3|(tt|)*2tL", (3, 2, 2, 1), (0, 0, 0, 0)),
        ("Et*3|(tt|)*29,m|L", (3, *(2,) * 29, 0, 0), (*(0,) * 30, 1, 0)),  # The example of parse_str_to_list.
        ("E|tt|tmmL", (0, 2, 1), (0, 0, 2)),
    ],
)
def test_a_layout_is_read_as_megatron_reads_it(text: str, sizes: tuple[int, ...], predicted_: tuple[int, ...]) -> None:
    found = stages.read_layout(text)
    assert (found.sizes, found.predicted) == (sizes, predicted_)


def test_a_layout_of_a_million_layers_is_refused_before_it_is_written_out() -> None:
    for text in ("Et*99999999|L", "E" + "(" * 1 + "t*99999)*99999|L"):
        with pytest.raises(ValueError, match="at most 100000 letters"):
            stages.read_layout(text)


def test_stages_have_what_their_layout_says() -> None:
    chunked = ("parallel.virtual_pipeline=2", "parallel.schedule=interleaved", "model.mtp_layers=1")
    spec = spec_of("parallel.layout=[Ettt,t,ttt,tmL]", *chunked)
    flow = flow_of(spec)
    assert chunk_sizes(spec) == (3, 1, 3, 1)
    assert [predicted_layers(flow.cut, stage) for stage in (0, 1)] == [0, 1]
    # The last stage runs one micro-batch of its last chunk before it goes back.
    assert predicted_in_flight(flow, 1) == Fraction(1)
    assert [len(one.model.view.layers) for one in ranks_of(spec)] == [6, 2]
    words = argument_list(spec)
    assert words[words.index("--pipeline-model-parallel-layout") + 1] == "Ettt|t|ttt|tmL"
    assert "--num-virtual-stages-per-pipeline-rank" not in words


ACCEPTED = (
    ("model.mtp_layers=1",),
    ("parallel.layout=[Etttttt,ttL]",),
    ("parallel.layout=[Etttttt,ttmmL]", "model.mtp_layers=2"),
    ("parallel.layout=[E,tttt,tttt,L]", "parallel.virtual_pipeline=2", "parallel.schedule=interleaved"),
    ("model.mtp_layers=1", "checkpointing=full"),
)
REFUSED = (
    ("parallel.layout=[Etttttt,tL]",),
    ("parallel.layout=[Etttttt,ttmL]",),
    ("parallel.layout=[Ettttttm,tL]", "model.mtp_layers=1"),
    ("parallel.layout=[tttttt,ttL]",),
    ("parallel.layout=[Ettt,tt,ttL]",),
)


@pytest.mark.thorough
def test_megatrons_own_validator_accepts_and_refuses_the_same() -> None:
    needs("megatron.core", "the validator is megatron-core's, of the extra 'megatron'")
    specs = [spec_of(*words) for words in (*ACCEPTED, *REFUSED)]
    ours = [not findings.errors(spec) for spec in specs]
    theirs = [answer is None for answer in answers([question(spec) for spec in specs])]
    assert ours == theirs == [True] * len(ACCEPTED) + [False] * len(REFUSED)
