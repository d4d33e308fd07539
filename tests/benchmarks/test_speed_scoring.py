"""The entries of the scoreboard of speed, on invented rows and predictions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.speed import __main__ as command
from benchmarks.speed import calibrating, publishing, simumax
from benchmarks.speed.anchoring import by_one_node
from benchmarks.speed.checking import checked
from benchmarks.speed.entries import Entry, entries
from benchmarks.speed.estimating import Judged, all_judged, judged
from benchmarks.speed.families import Family, families, not_counted
from benchmarks.speed.ratios import of_fp8, of_scaling
from benchmarks.speed.row import Row
from benchmarks.speed.scoring import choices, ninetieth, picked
from launcher.estimate.speed import calibration
from launcher.estimate.speed.calibration import UNCALIBRATED
from tests.support.helpers import make_spec
from tests.support.measured_speed import LINE, write_lines


def item(measured: float, predicted: float, **change: object) -> Judged:
    """A scored row: predicted and measured tokens a second."""
    line = dict(LINE)
    fields: dict[str, object] = {"name": "one", "family": "mine", "problem": "p", "framework": "F", "gpu": "g"}
    fields |= {"layout": (str(measured),), "line": line, "precision": "bf16", "spec": make_spec("hardware=h100_80g")}
    memory = change.pop("memory_bytes", 1)
    row = Row(measured=measured, **(fields | change))  # type: ignore[arg-type]
    return Judged(
        row=row, raw=predicted, predicted=predicted, constant=UNCALIBRATED, memory_bytes=memory,  # type: ignore[arg-type]
        crowding=None, parts={}, others={},
    )  # fmt: skip


def one_entry(name: str, items: Sequence[Judged | Row]) -> Entry:
    (found,) = [entry for entry in entries(families({"throughput.csv": items})) if entry.family == name]
    return found


def test_the_pick_is_the_measured_speed_of_what_is_predicted_fastest() -> None:
    rows = [item(100, 90), item(80, 110), item(50, 70)]
    found = choices(rows, lambda one: one.predicted)
    assert (found.problems, found.pick_worst) == (1, 0.8)
    assert found.pick == pytest.approx(0.8)
    assert found.spearman == pytest.approx(0.5)


def test_two_layouts_are_no_choice() -> None:
    rows = [item(100, 90), item(80, 110), item(70, 10, layout=("80",))]
    assert choices(rows, lambda one: one.predicted).problems == 0


def test_equal_predictions_are_told_apart_by_memory() -> None:
    rows = [item(100, 90.0, memory_bytes=7), item(80, 90.0000001, memory_bytes=5), item(50, 70)]
    assert picked(rows, lambda one: one.predicted).row.measured == 80


def test_the_ninetieth_percentile_is_a_measured_one() -> None:
    assert ninetieth([float(number) for number in range(10)]) == 9.0
    assert ninetieth([float(number) for number in range(20)]) == 18.0
    assert ninetieth([]) is None


def test_all_is_the_mean_of_the_families_with_ten_rows() -> None:
    rows = [item(100, 110, problem=str(n)) for n in range(10)]
    rows += [item(100, 130, problem=str(n), family="other") for n in range(30)]
    rows += [item(100, 900, problem=str(n), family="small") for n in range(9)]
    found = one_entry("all", rows)
    assert found.rows == 40
    assert found.median == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"soft": True}, "soft"),
        ({"moe": True}, "experts"),
        ({"task": "sft"}, "fine-tuning"),
        ({"flags": frozenset({"unsound"})}, "unsound"),
    ],
)
def test_rows_that_do_not_count_are_named_and_scored_apart(change: dict[str, object], reason: str) -> None:
    rows = [item(100, 110), item(100, 200, **change)]
    said = not_counted(rows[1].row)
    assert said is not None
    assert said.startswith(reason)
    found = one_entry("mine", rows)
    assert (found.rows, found.left_out) == (1, {said: 1})
    assert found.median == pytest.approx(0.1)


def test_a_row_that_is_left_out_is_counted_with_its_reason() -> None:
    found = one_entry("mine", [item(100, 110), Row(name="two", family="mine", left_out="no tokens a second")])
    assert found.left_out == {"no tokens a second": 1}


def test_nanotron_on_512_gpus_is_scored_apart_from_the_sound_runs() -> None:
    rows = [item(100, 110, family="nanotron_playbook", soft=True)]
    rows += [item(100, 300, family="nanotron_playbook", flags=frozenset({"512 GPUs"}))]
    rows += [item(100, 900, family="nanotron_playbook", flags=frozenset({"unsound"}))]
    assert one_entry("nanotron sound", rows).median == pytest.approx(0.1)
    assert one_entry("nanotron 512 GPUs", rows).median == pytest.approx(2.0)


def test_fp8_is_compared_with_bf16_of_the_same_recipe() -> None:
    plain, fast = item(100, 200, layout=("a",)), item(150, 280, precision="fp8", layout=("a",))
    (ratio,) = of_fp8([plain, fast, item(10, 10, precision="fp8", layout=("b",))])
    assert ratio.measured == 1.5
    assert ratio.predicted == pytest.approx(1.4)


def test_scaling_is_relative_to_the_fewest_gpus_of_a_series() -> None:
    def on(nodes: int, batch: int, measured: float, predicted: float) -> Judged:
        spec = make_spec(f"cluster.nodes={nodes}", f"train.global_batch_size={batch}")
        return item(measured, predicted, spec=spec)

    weak = [on(1, 64, 100, 50), on(2, 128, 90, 46), on(4, 256, 80, 43)]
    found = of_scaling(weak)
    assert [(one.measured, one.predicted) for one in found] == [(0.9, 0.92), (0.8, 0.86)]
    strong = [on(1, 64, 100, 50), on(2, 64, 70, 40)]
    assert [(one.measured, one.predicted) for one in of_scaling(strong)] == [(0.7, 0.8)]
    assert of_scaling([weak[0], replace(weak[1], row=replace(weak[1].row, precision="fp8"))]) == []


def family_of(items: Sequence[Judged]) -> Family:
    return Family(file="throughput.csv", name="mine", items=tuple(items), left_out=())


def test_a_constant_is_the_median_of_measured_over_predicted() -> None:
    rows = [item(speed, 100) for speed in (80, 90, 100, 110, 300)] + [item(50, 100, gpu="other")]
    found = calibrating.content([family_of(rows)])
    assert found["pairs"] == {
        "F on g": {
            "constant": 1.0,
            "low": 0.5263,
            "high": 3.1579,
            "rows": 5,
            "whose": "F on g",
            "certain": True,
            "generation": 9,
            "band_of": "others",
        }
    }
    assert calibration.LEAST_ROWS == 5
    frameworks = found["frameworks"]
    assert isinstance(frameworks, dict)
    assert (frameworks["F"]["constant"], frameworks["F"]["rows"]) == (0.95, 6)


def test_the_band_of_new_stacks_reaches_as_far_as_the_bands_of_all_but_one_in_twenty() -> None:
    groups = [[0.9] * 8 + [1.1] * 8] * 8 + [[0.5] * 5] + [[2.0] * 5]
    items = [
        item(speed * 100, 100, framework=f"F{number}", family=f"f{number}")
        for number, speeds in enumerate(groups)
        for speed in speeds
    ]
    found = calibrating.content([family_of(items)])["all"]
    assert (found["low"], found["high"]) == (0.5, 2.0)


def of_model(measured: float, model: str, **change: object) -> Judged:
    return item(measured, 100, line={**LINE, "model": model}, **change)


def test_a_framework_of_two_models_has_the_band_of_others_and_one_of_three_that_of_new_models() -> None:
    rows = [of_model(100, model, framework="two") for model in "ab" for _ in range(5)]
    rows += [of_model(speed, model, framework="three") for model, speed in zip("abc", (60, 60, 90), strict=True)] * 5
    found = calibrating.tables([family_of(rows)])
    assert found["pairs"]["two on g"]["band_of"] == "others"
    assert found["pairs"]["two on g"]["high"] == found["elsewhere"]["high"] == pytest.approx(100 / 60, abs=1e-4)
    assert "band_of" not in found["pairs"]["three on g"]
    assert found["pairs"]["three on g"]["high"] == pytest.approx(90 / 60)


def test_uncertain_runs_widen_a_band_and_move_no_constant() -> None:
    rows = [of_model(90, model) for model in "abc" for _ in range(5)]
    plain = calibrating.tables([family_of(rows)])["pairs"]["F on g"]
    wide = calibrating.tables([family_of([*rows, *(of_model(45, "d", soft=True) for _ in range(5))])])
    assert (plain["constant"], plain["low"]) == (0.9, 1.0)
    assert (wide["pairs"]["F on g"]["constant"], wide["pairs"]["F on g"]["low"]) == (0.9, 0.5)


def test_a_run_that_made_its_own_band_is_outside_of_the_one_without_its_model_and_source() -> None:
    rows = [of_model(90, model, family=f"f{n}", framework=f"F{n}") for n in range(3) for model in "abc"] * 5
    rows += [of_model(300, model, family="far", framework="far") for model in "abc"] * 5
    found = {entry.family: entry for entry in entries(families({"throughput.csv": rows}))}
    assert found["far"].unseen.within is not None
    assert (found["far"].held_out.within, found["far"].held_out.unseen) == (1.0, 0.0)
    assert (found["f0"].held_out.within, found["f0"].held_out.unseen) == (1.0, 1.0)


def test_models_with_experts_have_constants_of_their_own() -> None:
    rows = [item(90, 100)] * 5 + [item(60, 100, moe=True, task="pretrain")] * 5
    found = calibrating.content([family_of(rows)])
    assert found["pairs"]["F on g"]["constant"] == 0.9
    assert found["experts"]["pairs"]["F on g"]["constant"] == 0.6
    assert found["experts"]["pairs"]["F on g"]["whose"] == "F on g, models with experts"


def test_no_constant_rests_on_rows_whose_licence_forbids_it() -> None:
    rows = [item(50, 100, family="aleph", framework="A") for _ in range(9)] + [item(90, 100) for _ in range(9)]
    found = calibrating.content([family_of(rows)])
    assert isinstance(found["frameworks"], dict)
    assert (list(found["frameworks"]), found["all"]["constant"]) == (["F"], 0.9)


def test_soft_rows_serve_a_framework_that_has_too_few_others() -> None:
    rows = [item(50, 100, soft=True), item(90, 100, framework="G", soft=True)]
    rows += [item(80, 100, framework="G") for _ in range(5)]
    assert [one.row.measured for one in calibrating.fitted([family_of(rows)])] == [50, 80, 80, 80, 80, 80]


def test_the_scoreboard_answers_with_every_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layouts = [("4", "2", "2"), ("8", "2", "1"), ("16", "1", "1")]
    lines = [LINE | {"id": tp + pp, "dp": dp, "tp": tp, "pp": pp} for dp, tp, pp in layouts]
    write_lines(tmp_path / "throughput.csv", [*lines, LINE | {"gpu": "TPU v4"}])
    rows = tmp_path / "rows.jsonl"
    monkeypatch.setattr("sys.argv", ["benchmarks.speed", "--data", str(tmp_path), "--json", "--rows", str(rows)])
    assert command.main() == 0
    found = {entry["family"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert {"mine", "all", "moe", "fp8 ratio", "scaling"} <= set(found)
    mine = found["mine"]
    assert (mine["rows"], mine["problems"], mine["left_out"]) == (3, 1, {"no such GPU in conf/hardware": 1})
    assert 0 < mine["pick"] <= 1
    assert {"constant_mfu", "roofline", "calculon"} <= set(mine["baselines"])
    written = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [line["id"] for line in written] == ["22", "21", "11"]
    assert all(line["predicted_raw"] > 0 and line["parts"] for line in written)


def test_a_folder_without_rows_is_an_error_and_a_file_without_adapter_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.csv").write_text("id\n")
    monkeypatch.setattr("sys.argv", ["benchmarks.speed", "--data", str(tmp_path)])
    assert command.main() == 1
    assert "other.csv: no adapter" in capsys.readouterr().err


def test_a_row_on_a_card_without_figures_is_left_out_with_the_reason(tmp_path: Path) -> None:
    from benchmarks.speed.adapters import throughput

    (row,) = throughput.rows(write_lines(tmp_path / "throughput.csv", [LINE]))
    assert row.spec is not None
    blind = replace(row.spec, hardware=replace(row.spec.hardware, memory_bandwidth=None))
    found = judged(replace(row, spec=blind))
    assert isinstance(found, str)
    assert "memory_bandwidth" in found


def test_a_row_can_be_scored_without_what_was_chosen_on_scored_rows(tmp_path: Path) -> None:
    from benchmarks.speed.adapters import throughput

    line = LINE | {"framework": "Megatron-DeepSpeed"}
    rows = list(throughput.rows(write_lines(tmp_path / "throughput.csv", [line])))
    with_, without = (next(iter(all_judged(rows, host_constants=asked))) for asked in (True, False))
    assert isinstance(with_, Judged)
    assert isinstance(without, Judged)
    assert without.raw > with_.raw
    assert "| mine | 1 | " in "\n".join(publishing.document([], [one_entry("mine", [without])]))


def test_the_document_has_each_entry_with_rows_and_each_reason() -> None:
    rows: list[Judged | Row] = [item(100, 110), Row(name="two", family="mine", left_out="no tokens a second")]
    lines = list(publishing.document(list(entries(families({"throughput.csv": rows})))))
    assert "| mine | 1 | 10.0% | 10.0% | 10.0% | 10.0% | - | - | - | - |" in lines
    assert "| mine | 1 | no tokens a second |" in lines
    assert not any(line.startswith("| moe |") for line in lines)


def test_a_run_on_several_nodes_is_predicted_by_each_of_one_node_alike_or_unlike_it() -> None:
    one, two, other = (
        make_spec("hardware=h100_80g", "cluster=slurm", "cluster.gpus_per_node=8", *words)
        for words in ((), ("cluster.nodes=2",), ("train.micro_batch_size=2",))
    )
    rows = [item(80, 100, spec=one), item(60, 100, spec=other), item(90, 100, spec=two)]
    assert [found.predicted for found in by_one_node(rows, alike=True)] == [80.0]
    assert [found.predicted for found in by_one_node(rows, alike=False)] == [60.0]
    assert by_one_node([*rows[:2], replace(rows[2], row=replace(rows[2].row, precision="fp8"))], alike=True) == []


def test_simumax_stands_beside_us_on_its_own_runs_whoever_wins(tmp_path: Path) -> None:
    theirs = {"id": "one", "step_time_s": 2.0, "theirs": {"step_time_s": 1.9}}
    (tmp_path / simumax.FILE).write_text(json.dumps(theirs))
    rows = [item(90, 100), item(90, 100, name="unknown")]
    factor = checked(rows[0]).value
    *_, line = simumax.table(rows, tmp_path)
    error = f"{100 * abs(0.9 / factor - 1):.1f}%"
    assert line.startswith(f"| dense | 1 | 5.0% | 5.0% | {error} | {error} |")
    assert list(simumax.table(rows, tmp_path / "elsewhere")) == []
    assert "## SimuMax on its own runs" in list(publishing.document([], (), [line]))
