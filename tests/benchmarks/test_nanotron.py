"""The check-only backend for nanotron's published runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.memory.adapters import nanotron_playbook
from benchmarks.memory.frameworks.nanotron.backend import Nanotron
from benchmarks.memory.row import Row
from benchmarks.memory.scoring import judged, predicted
from launcher.base import registry
from launcher.estimate.memory.estimate import RankTerms, rank_terms
from tests.support.helpers import make_spec
from tests.support.measured_lines import NANOTRON


def row(folder: Path, **changes: str) -> Row:
    line = NANOTRON | changes
    path = folder / "nanotron_playbook.csv"
    path.write_text("\n".join((",".join(line), ",".join(line.values()))))
    found = list(nanotron_playbook.rows(path))
    assert len(found) == 1
    return found[0]


def stages(found: Row) -> tuple[RankTerms, ...]:
    assert found.spec is not None
    strategies = [registry.load("strategies", name) for name in registry.names("strategies")]
    family = registry.load("families", "llama")
    return rank_terms(found.spec, family=family, strategies=strategies, backend=Nanotron())


def first_stage(found: Row) -> RankTerms:
    return stages(found)[0]


def bytes_per_parameter(rank: RankTerms) -> float:
    static = [term for term in rank.at("step") if term.pile not in ("workspace", "context", "communicators")]
    return sum(term.bytes for term in static) / rank.model.elements.whole


@pytest.mark.parametrize(("stage", "expected"), [("0", 20.0), ("1", 10 + 14 / 16)])
def test_a_step_holds_20_bytes_a_parameter_or_10_and_14_shared_with_zero_1(
    stage: str, expected: float, tmp_path: Path
) -> None:
    rank = first_stage(row(tmp_path, zero_stage=stage))
    assert bytes_per_parameter(rank) == pytest.approx(expected, rel=1e-6)


def test_one_copy_needs_no_buckets(tmp_path: Path) -> None:
    rank = first_stage(row(tmp_path, zero_stage="0", n_gpus="8", tp="8", sp="true"))
    assert "reduce_buffers" not in {term.pile for term in rank.terms}


def test_a_measured_run_is_a_row_of_its_first_stage(tmp_path: Path) -> None:
    found = row(tmp_path, pp="4", zero_stage="0")
    assert found.measured == {"reserved": 50 * 2**30}
    assert (found.stage, found.oom, found.soft) == (0, "false", False)
    assert len(first_stage(found).model.view.layers) == 8


def test_a_run_out_of_memory_has_no_counter(tmp_path: Path) -> None:
    found = row(tmp_path, oom="true", peak_mem_gib="")
    assert (dict(found.measured), found.oom) == ({}, "true")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"unit_certain": "False"}, "the counter or its unit is uncertain"),
        ({"n_gpus": "12"}, "a node is not full"),
        ({"layers": "many"}, "does not parse: model.num_hidden_layers"),
    ],
)
def test_a_run_that_cannot_be_expressed_says_why(changes: dict[str, str], reason: str, tmp_path: Path) -> None:
    found = row(tmp_path, **changes)
    assert (found.spec, found.left_out) == (None, reason)


def test_layers_are_dealt_out_by_the_work_of_their_matrices() -> None:
    model = make_spec("model=llama2_7b", "model.vocab_size=131072").model
    first, last = nanotron_playbook.first_and_last(model, 4)
    # 32 layers of 202 M and an output projection of 537 M, 2.65 layers: 8.66 a stage, and the block that exceeds it.
    assert (first, last) == (9, 6)


def test_a_last_stage_may_have_the_output_projection_alone(tmp_path: Path) -> None:
    found = row(tmp_path, n_gpus="32", pp="32", zero_stage="0")
    assert found.spec is not None
    assert found.spec.parallel.last_stage_layers == 0
    assert len(first_stage(found).model.view.layers) == 1


def test_bf16_gradients_of_all_weights_exist_when_a_backward_pass_ends(tmp_path: Path) -> None:
    rank = first_stage(row(tmp_path))
    halves = [term.bytes for term in rank.at("root_backward") if term.what == "bf16 gradients"]
    assert halves == [2 * rank.model.elements.whole]


@pytest.mark.parametrize(
    ("changes", "groups", "pairs"),
    [
        ({"n_gpus": "8", "tp": "8", "sp": "true"}, 2, [0]),
        ({"n_gpus": "64", "tp": "8", "sp": "true"}, 3, [0]),
        ({"n_gpus": "16", "pp": "2"}, 3, [1, 1]),
        ({"n_gpus": "32", "pp": "4"}, 3, [2, 2, 2, 2]),
        ({"n_gpus": "64", "tp": "2", "sp": "true", "pp": "4", "tied_embeddings": "false"}, 5, [1, 2, 2, 1]),
    ],
)
def test_a_model_on_one_axis_shares_its_communicator_and_neighbours_and_tied_ends_have_one_of_two_ranks(
    changes: dict[str, str], groups: int, pairs: list[int], tmp_path: Path
) -> None:
    found = [
        sum(term.bytes for term in rank.terms if term.pile == "communicators")
        for rank in stages(row(tmp_path, **changes))
    ]
    assert found == [groups * 2 * 10**9 + number * 544 * 10**6 for number in pairs]


def test_reserved_bytes_come_from_the_replay(tmp_path: Path) -> None:
    found = row(tmp_path, tp="8", sp="true", n_gpus="8", micro_batch="1", global_batch="4", zero_stage="0")
    assert found.reserved is not None
    assert predicted(judged(found), "reserved") == found.reserved()
