"""Evidence behind the modes of an engine: counted by a tool, told by estimates, minded by the planner."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks import evidence
from launcher.estimate.memory import modes
from launcher.estimate.memory.modes import MODES, computing, sharing
from launcher.planner.judge import Preflight
from launcher.planner.planning import plan
from launcher.planner.question import Question, ask
from launcher.planner.space import Space
from launcher.preflight import assess
from launcher.preflight import evidence as rehearsals
from launcher.spec.parse import to_dict
from launcher.views.check.sentences import reason
from tests.support.helpers import make_spec
from tests.support.layouts import FEW
from tests.support.rehearsed_ranks import FOUND

NODE = ("model=1b", "hardware=h100_80g", "cluster.gpus_per_node=4", "train.global_batch_size=8")
SHARDED = ("model=1b", "backend=megatron", *FEW[2:])
TRL = {"TRL on DDP", "TRL on DeepSpeed", "TRL on FSDP2"}
ZERO_2 = "ZeRO-2 of Megatron-FSDP"


def engines() -> dict[str, dict[str, dict[str, dict[str, int]]]]:
    found: dict[str, dict[str, dict[str, dict[str, int]]]] = json.loads(MODES.read_text())["engines"]
    return found


def test_the_committed_evidence_is_of_runs_by_engine_way_and_part() -> None:
    assert {"what", "command", "date", "commit", "engines"} == json.loads(MODES.read_text()).keys()
    ways = {way: parts for found in engines().values() for way, parts in found.items()}
    assert set(ways) == {"DDP", "FSDP", "DeepSpeed", "Megatron", "Megatron-FSDP", *TRL}
    counts = [kinds for parts in ways.values() for kinds in parts.values()]
    assert all(kinds and set(kinds) <= {"measured", "runs"} and min(kinds.values()) > 0 for kinds in counts)


def test_every_mode_that_the_planner_can_propose_has_its_evidence_or_is_marked_without() -> None:
    question, known, judge = ask(["model=mixtral_8x7b", *NODE[1:], "train.micro_batch_size=1"]), engines(), Preflight()
    found = dict[str, str]()
    for opening in question.openings:
        space = Space.of(opening.spec, opening.fixed, {}, judge.errors)
        for degrees in space.degrees(judge.errors):
            for spec in space.variants(degrees, judge.errors):
                backend, lacking = assess.parts(spec)["backend"], assess.unmeasured(spec)
                way = backend.mode(spec)
                for part in sharing(spec):
                    backed = part in known[backend.framework][way]
                    assert (f"{part} of {way}" in lacking) is not backed
                    found[f"{part} of {way}"] = "backed" if backed else "marked"
    assert set(found.values()) == {"backed", "marked"}
    assert (found[ZERO_2], found["ZeRO-3 of Megatron-FSDP"]) == ("marked", "backed")


@pytest.mark.parametrize(("zero", "lacking"), [("2", (ZERO_2,)), ("3", ())])
def test_an_estimate_names_what_nothing_measured_backs_and_has_the_widest_band(
    zero: str, lacking: tuple[str, ...]
) -> None:
    spec = make_spec(*NODE, "backend=megatron", f"zero={zero}")
    found = assess.assess(spec, search=None)
    assert found.estimate is not None
    assert found.estimate.band is not None
    assert assess.as_json(found)["unmeasured"] == list(lacking)
    assert found.estimate.band.own is not bool(lacking)
    assert (f"Nothing measured backs {ZERO_2}" in reason(spec, found.verdict, found.estimate)) is bool(lacking)


def layouts(*words: str, unmeasured: bool = False) -> list[tuple[int, tuple[str, ...]]]:
    question: Question = ask(words)
    found = plan(question, judge=Preflight(unmeasured=unmeasured))
    return [(each.spec.zero.stage, each.unmeasured) for each in found.layouts]


@pytest.mark.parametrize(("chunks", "backed"), [(2, True), (5, True), (17, False), (20, True)])
def test_a_number_of_model_chunks_is_a_part_of_a_mode(chunks: int, backed: bool) -> None:
    stages = (f"model.num_hidden_layers={2 * chunks}", "parallel.pipeline=2", f"parallel.virtual_pipeline={chunks}")
    spec = make_spec(*NODE, *stages, "parallel.schedule=interleaved", "backend=megatron")
    assert (assess.unmeasured(spec) == ()) is backed


@pytest.mark.parametrize(("ranks", "backed"), [(8, True), (32, True), (128, False)])
def test_how_many_nodes_experts_lie_on_is_a_part_of_a_mode(ranks: int, backed: bool) -> None:
    words = ("model=deepseek_v3", "hardware=h100_80g", "cluster.nodes=16", "cluster.gpus_per_node=8", "zero=1")
    spec = make_spec(*words, "backend=megatron", f"parallel.expert={ranks}", "parallel.expert_tensor=1")
    assert (assess.unmeasured(spec) == ()) is backed


def test_a_rehearsal_on_a_gpu_is_evidence_for_the_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    spec, judge = make_spec(*NODE, "backend=megatron", "zero=2"), Preflight()
    assert judge.behind(spec) == (ZERO_2,)
    place = rehearsals.place(spec)
    place.mkdir(parents=True)
    for device, behind in (("cpu", (ZERO_2,)), ("cuda", ())):
        content = {"schema": 1, "evidence": asdict(replace(FOUND, device=device))}
        (place / rehearsals.RESULT).write_text(json.dumps(content))
        assert judge.behind(spec) == behind


def test_the_planner_ranks_what_nothing_measured_backs_behind_unless_it_is_asked_for() -> None:
    assert layouts(*SHARDED)[-1] == (2, (ZERO_2,))
    asked = layouts(*SHARDED, unmeasured=True)
    assert sorted(asked) == sorted(layouts(*SHARDED))
    assert asked[-1] != (2, (ZERO_2,))


def test_a_mode_that_is_typed_is_ranked_as_if_it_had_evidence() -> None:
    assert layouts(*SHARDED, "zero=2") == [(2, (ZERO_2,))]


def test_run_directories_are_evidence_once_a_step_was_taken(tmp_path: Path) -> None:
    spec = make_spec("model=tiny", "parallel=hsdp", "cluster.nodes=2", "cluster.gpus_per_node=2")
    for name in ("begun", "trained"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "spec.json").write_text(json.dumps(to_dict(spec)))
    (tmp_path / "trained" / "metrics.jsonl").write_text('{"step": 1}\n')
    (seen,) = evidence._runs(tmp_path)
    assert seen == ("runs", "fsdp", "FSDP", (*sharing(spec), *computing(spec)))
    assert "replicas" in seen.parts
    assert modes.unmeasured(spec, "of nobody", None) == ()
