"""The answer of ``launch plan`` for a terminal."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest

from launcher.base.units import gib
from launcher.planner import slower_because
from launcher.planner.wording import layout as worded
from launcher.views.plan import table
from tests.support.layouts import MEGATRON, WORDS, layout, plan_of

FIRST = layout(*MEGATRON, "train.loss=fused")
SECOND = layout(*MEGATRON, "parallel.pipeline=4", "parallel.virtual_pipeline=8", "parallel.schedule=interleaved")
OTHER = layout("parallel=fsdp", "checkpointing=full")
PLAN = plan_of(
    *slower_because.explained((FIRST, SECOND)),
    others=slower_because.explained((OTHER,), FIRST),
)


def joined(text: str) -> str:
    """The text without its line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, table.text(PLAN, width, lines=True).splitlines())) <= width


def test_each_layout_has_its_figures_itself_and_why_it_loses() -> None:
    said = table.text(PLAN)
    speed = SECOND.speed
    assert speed is not None
    row = next(line for line in said.splitlines() if line.startswith(" 2 "))
    lost = slower_because.loss(SECOND, FIRST)
    assert lost is not None
    for figure in (f"{speed.mfu:.1%}", f"{speed.bubble:.1%}", f"{table.exposed(SECOND):.1%}", f"{-lost:+.1%}", "GiB"):
        assert figure in row
    assert worded(SECOND.spec) in said
    assert PLAN.layouts[1].loses in joined(said)
    assert re.search(r"the fastest of other engines:\n 3 .*\n +FSDP", said)


def test_what_was_assumed_is_said_with_its_reason_and_what_the_speeds_rest_on() -> None:
    said = joined(table.text(PLAN))
    assert "assumed: train.sequence_length=4096 (it is not said)" in said
    assert "speeds are formulas times the median of measured / predicted in: Megatron " in said
    for each in (FIRST, OTHER):
        assert each.speed is not None
        assert f"{each.speed.constant.rows} runs of {each.speed.constant.whose}" in said


def test_assumptions_of_the_same_reason_are_one_sentence() -> None:
    both = plan_of(FIRST, assumptions=(*PLAN.assumptions, replace(PLAN.assumptions[0], override="a.b=1")))
    assert "assumed: train.sequence_length=4096 a.b=1 (it is not said)" in joined(table.text(both))


def test_the_line_to_paste_is_the_words_and_the_layouts_own() -> None:
    quoted = plan_of(FIRST, single=(*WORDS, "run.name=a b"))
    said = table.text(quoted)
    line = said[said.index("launch the first:\n") :].partition("\n")[2].partition("\n\n")[0]
    assert len(line.splitlines()) > 1
    assert shlex.split(line.replace("\\\n", " ")) == ["launch", *WORDS, "run.name=a b", *FIRST.overrides]


def test_the_lines_of_all_layouts_are_there_to_paste_on_request() -> None:
    said = table.text(PLAN, lines=True)
    assert "launch the first" not in said
    found = re.findall(r"^   launch (?:.*\\\n)*.*", said, re.MULTILINE)
    typed = [shlex.split(line.replace("\\\n", " "))[1:] for line in found]
    assert typed == [[*WORDS, *each.overrides] for each in (FIRST, SECOND, OTHER)]


def test_a_layout_that_may_not_fit_says_how_likely_it_is_to() -> None:
    risky = replace(SECOND, verdict=replace(SECOND.verdict, chance=0.77))
    said = joined(table.text(plan_of(FIRST, risky)))
    assert f"{worded(SECOND.spec)} · 77% likely to fit" in said
    assert "times the probability of fitting" in said
    assert "likely" not in table.text(plan_of(FIRST, SECOND))


def test_a_layout_with_states_on_the_host_says_what_a_node_needs_for_them() -> None:
    offloaded = layout("parallel=zero3", "zero.offload_optimizer=cpu")
    size = gib(offloaded.verdict.host_bytes)
    assert offloaded.verdict.host_bytes > 12 * 6.7e9 / offloaded.spec.cluster.nodes  # Adam and a master copy in fp32.
    assert f"{worded(offloaded.spec)} · {size} of host memory a node" in joined(table.text(plan_of(offloaded)))
    assert "host memory" not in table.text(PLAN)


def test_the_layout_at_the_edge_is_told_with_its_gain_its_risk_and_the_way_to_know() -> None:
    tight = replace(FIRST, verdict=replace(FIRST.verdict, name="tight", chance=0.6))
    text = table.text(plan_of(SECOND, tight=tight))
    said = joined(text)
    gain = slower_because.loss(FIRST, SECOND)
    assert gain is not None
    assert f"at the edge of the card: {-gain:+.1%} tokens/s with {worded(FIRST.spec)}, needs" in said
    assert "and is 60% likely to fit" in said
    assert f"why 1 is slower: {slower_because.loss_text(SECOND, FIRST)}" in said
    assert "try it:\nlaunch rehearse model=7b " in text


def test_a_layout_that_cannot_be_rehearsed_is_measured_by_its_first_steps() -> None:
    own = layout("task=sft", "parallel=fsdp", "data=chat", "data.path=chat.jsonl")
    tight = replace(own, verdict=replace(FIRST.verdict, name="tight", chance=0.6))
    text = table.text(plan_of(own, tight=tight))
    assert "likely to fit; its first steps measure it" in joined(text)
    assert "try it:\nlaunch model=7b " in text
    assert "rehearse" not in text


def test_a_first_layout_that_only_fits_within_the_error_is_said_to() -> None:
    tight = replace(FIRST, verdict=replace(FIRST.verdict, name="tight", chance=0.6))
    assert "No layout that certainly fits is expected to be faster: 1 is 60% likely to fit" in joined(
        table.text(plan_of(tight))
    )
    assert "Nothing that fits" not in joined(table.text(plan_of(FIRST)))


def test_what_became_of_all_layouts_is_counted() -> None:
    said = joined(table.text(PLAN))
    assert "searched 1,000 layouts in 1.2 s: 200 invalid, 100 do not fit, 700 slower by a bound or an estimate" in said


def test_where_nothing_fits_the_counts_say_why() -> None:
    assert "DOES NOT FIT: none of the 800 valid layouts" in joined(table.text(plan_of()))


def test_an_interrupted_search_says_that_its_answer_is_not_whole() -> None:
    said = joined(table.text(plan_of(FIRST, finished=False)))
    assert "launch the first of those found so far:" in said
    assert "interrupted after 1,000 layouts in 1.2 s: 200 invalid, 100 do not fit, 700 undecided or slower" in said
    assert "interrupted before any layout that fits was found" in table.text(plan_of(finished=False))


def test_without_speeds_the_table_is_of_memory_and_says_why() -> None:
    words = ("model=tiny", "train.global_batch_size=8")
    said = table.text(plan_of(layout("parallel=fsdp", words=words), layout("parallel=ddp", words=words), words=words))
    assert "speed unknown: the speed of a CPU is not modelled" in joined(said)
    assert "MFU" not in said
    assert re.search(r"^ 2 +[\d.]+ [GM]iB +\d+%$", said, re.MULTILINE)


def test_layouts_of_several_precisions_name_theirs() -> None:
    other = layout(*MEGATRON, "precision=fp32")
    said = table.text(plan_of(FIRST, other))
    assert "bf16 or fp32" in said
    assert "micro-batch 1 · fp32" in said
    assert "· bf16" not in table.text(PLAN)
