"""``launch import``, ``check`` and ``run`` of other programs' files: what is left out is counted, named or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import launcher
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.cli import main
from launcher.config.hub import own_models
from launcher.config.hub import reading as hugging_face
from launcher.importers import Imported, Ledger, LeftOut, deepspeed, megatron

type Answer = Callable[[str], tuple[int, str, str]]

ON = "hardware=h100_80g cluster.gpus_per_node=8"
FILE = {
    "steps": 7,
    "seed": 1234,
    "buffer": 5,
    "corpus": "/data/pile",
    "vocabulary": 1024,
    "api_key": "k9f3Qz81LmX0",
    "color": "red",
}


def _read(text: str, path: str, *, variables: Mapping[str, str] = MappingProxyType({})) -> Imported:
    """A reader of files whose keys end in every list, so that the commands around the importers are seen alone."""
    values = json.loads(text)
    ledger = Ledger(values)
    ledger.say("steps", "train.steps")
    ledger.default("seed")
    ledger.keep("buffer")
    ledger.leave("corpus", f"the data are Python's library here: {'' if variables else '--set DATA=...'}")
    ledger.leave("vocabulary", "the vocabulary comes from the tokenizer: set model.vocab_size")
    ledger.leave("api_key", "no effect: of a tracker", matters=False)
    ledger.leave("color", "no effect: of the log", matters=False)
    ledger.leave("save_interval", "checkpoints are written as save.every says", matters=False)
    wrong = [ConfigError(f"{path}: model", values["model"], "it is no GPT")] if "model" in values else []
    return ledger.imported(
        summary="a file",
        source="a test",
        choose={"parallel": "zero2"},
        settings={"train.steps": values.get("steps", 3)},
        not_understood=[f"${name} has no value" for name in ("DATA",) if "corpus" in values and not variables],
        errors=wrong,
    )


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Answer:
    monkeypatch.chdir(tmp_path)
    for importer in (deepspeed, megatron):
        monkeypatch.setattr(importer, "read", _read)
    Path("f.json").write_text(json.dumps(FILE))

    def answered(words: str) -> tuple[int, str, str]:
        status = main(words.split())
        said = capsys.readouterr()
        return status, said.out, " ".join(said.err.split())

    return answered


def test_what_matters_and_is_left_out_is_refused_with_the_document_and_no_recipe(answer: Answer) -> None:
    status, out, said = answer("import deepspeed f.json --recipe mine.yaml --json")
    assert status == 2
    assert not Path("mine.yaml").exists()
    document = json.loads(out)
    assert document["verdict"] == "invalid"
    assert [error["path"] for error in document["errors"]] == ["f.json: corpus", "f.json: vocabulary"]
    assert document["errors"][0] == {
        "path": "f.json: corpus",
        "found": "/data/pile",
        "rule": "it is left out: the data are Python's library here: --set DATA=...",
        "way_out": ["--set DATA=...", "--partial"],
    }
    assert document["errors"][1]["way_out"] == ["model.vocab_size=...", "--partial"]
    found = document["import"]
    assert found["said"] == [{"key": "steps", "overrides": ["train.steps=7"]}]
    assert (found["default"], found["kept"]) == (["seed"], ["buffer"])
    assert [left["key"] for left in found["left_out"]] == ["corpus", "vocabulary", "api_key", "color"]
    assert found["left_out"][2] == {"key": "api_key", "value": "(not shown)", "effect": "no effect: of a tracker"}
    assert found["not_understood"] == ["$DATA has no value"]
    assert said.startswith(
        "launch: f.json: 7 keys: 1 imported, 1 equal to defaults, 1 passed to the engine, 4 left out"
    )
    assert "error: f.json: corpus=/data/pile: it is left out: the data are Python's" in said


def test_a_setting_that_an_error_asks_for_is_taken_and_stands_among_the_files_own(answer: Answer) -> None:
    assert answer("import deepspeed f.json model.vocab_size=2048")[0] == 2  # The data are still asked for.
    status, out, _ = answer("import deepspeed f.json train.steps=9 --partial model.vocab_size=2048 --recipe mine.yaml")
    assert (status, out) == (0, "parallel=zero2 \\\n  train.steps=9 \\\n  model.vocab_size=2048\n")
    assert "model.vocab_size: 2048" in Path("mine.yaml").read_text()
    for word, rule in (
        ("model.vocb_size=8", "no such group or key"),
        ("train.steps=few", "invalid value for this key"),
    ):
        status, out, said = answer(f"import deepspeed f.json --partial {word}")
        assert (status, out) == (2, "")
        assert rule in said


def test_a_refusal_prints_nothing_that_could_be_pasted(answer: Answer) -> None:
    assert answer("import deepspeed f.json")[:2] == (2, "")


def test_partial_imports_the_rest_and_says_aloud_what_is_missing(answer: Answer) -> None:
    status, out, said = answer("import deepspeed f.json --partial --recipe mine.yaml")
    assert (status, out) == (0, "parallel=zero2 \\\n  train.steps=7\n")
    assert Path("mine.yaml").is_file()
    assert "left out, although it matters: corpus=/data/pile: the data are Python's library here" in said
    assert "left out: api_key=(not shown): no effect: of a tracker left out: color=red: no effect: of the log" in said
    assert "note: $DATA has no value" in said
    assert said.index("vocabulary=1024") < said.index("color=red")


def test_many_keys_without_an_effect_are_named_in_one_line(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(text: str, path: str) -> Imported:
        ledger = Ledger({f"token_{number}": number for number in range(30)} | {"save_interval": 5})
        for key in ledger.values:
            ledger.leave(key, "no effect: of generation only", matters=False)
        ledger.leave("save_interval", "checkpoints are written as save.every says", matters=False)
        return ledger.imported(summary="", source="", choose={}, settings={})

    monkeypatch.setattr(deepspeed, "read", read)
    status, _, said = answer("import deepspeed f.json")
    assert status == 0
    assert "left out: save_interval=5: checkpoints are written as save.every says" in said
    assert "left out, with no effect: token_0, token_1," in said
    assert said.endswith("token_29 (--json has the reasons)")
    assert said.count("of generation only") == 0


def test_a_file_that_is_no_run_here_is_refused_with_its_lists_whatever_else_is_said(answer: Answer) -> None:
    Path("f.json").write_text(json.dumps({**FILE, "model": "BERT"}))
    for words in ("import deepspeed f.json --json", "import deepspeed f.json --partial --json"):
        status, out, _ = answer(words)
        document = json.loads(out)
        assert (status, [error["path"] for error in document["errors"]]) == (2, ["f.json: model"])
        assert document["import"]["default"] == ["seed"]
    status, out, _ = answer(f"check model=1b --deepspeed f.json --partial --json {ON}")
    assert (status, json.loads(out)["errors"][0]["rule"]) == (2, "it is no GPT")


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", '{"a": NaN'])
def test_a_file_that_cannot_be_read_gives_one_document_too(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.json").write_text(text)
    for kind in ("deepspeed", "hf"):
        assert main(["import", kind, "f.json", "--json"]) == 2
        document = json.loads(capsys.readouterr().out)
        assert document["import"] is None
        assert [error["path"] for error in document["errors"]] == ["f.json"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (
            "import deepspeed f.json --set TP=8",
            "--set=TP=8: it sets variables of a script, and a file of the kind",
        ),
        ("import hf f.json --set TP=8", "a file of the kind hf has none"),
        ("import megatron f.json --set 8", "--set=8: must be NAME=VALUE, with a shell variable's name"),
        ("import megatron f.json --set a-b=8", "must be NAME=VALUE"),
        ("import megatron f.json --set A=1 --set A=2", "--set=A=2: A is already 1 try --set A=2"),
        ("check model=1b --set A=1", "--set=A=1: it sets variables of a script, and no script is given try --megatron"),
        ("check -m model=1b --set A=1", "--set=['A=1']: -m does not use it"),
        ("check --points p.jsonl --partial", "OVERRIDE=--partial: each point of --points holds all of its overrides"),
    ],
)
def test_a_variable_or_an_option_that_nothing_would_read_is_refused(words: str, rule: str, answer: Answer) -> None:
    status, _, said = answer(words)
    assert status == 2
    assert rule in said


def test_a_script_s_variables_reach_its_importer(answer: Answer) -> None:
    _, out, _ = answer("import megatron f.json --set DATA=/x --set TP=8 --partial --json")
    assert json.loads(out)["import"]["not_understood"] == []


def test_no_verdict_is_given_for_a_file_of_which_words_that_matter_are_left_out(answer: Answer) -> None:
    check = f"check model=1b --deepspeed f.json --json {ON}"
    status, out, said = answer(check)
    assert (status, json.loads(out)["verdict"]) == (2, "invalid")
    assert [error["path"] for error in json.loads(out)["errors"]] == ["f.json: corpus", "f.json: vocabulary"]
    assert "launch: f.json: 7 keys: 1 imported" in said
    assert "`launch import deepspeed f.json` names them" in said
    answered = json.loads(answer(f"{check} model.vocab_size=2048")[1])
    assert [error["path"] for error in answered["errors"]] == ["f.json: corpus"]
    status, out, _ = answer(f"{check} --partial")
    assert (status, json.loads(out)["verdict"]) == (0, "fits")
    warnings = [warning for warning in json.loads(out)["warnings"] if warning["path"].startswith("f.json")]
    assert [warning["path"] for warning in warnings] == ["f.json: corpus", "f.json: vocabulary", "f.json"]
    assert warnings[0]["rule"] == "the run goes without it: the data are Python's library here: --set DATA=..."


def test_what_matters_of_a_file_stands_beside_the_other_errors(answer: Answer) -> None:
    found = json.loads(answer(f"check model=1b --deepspeed f.json parallel.tensor=3 --json {ON}")[1])["errors"]
    assert {"f.json: corpus", "parallel.tensor"} <= {error["path"] for error in found}


def test_typed_tokens_take_the_place_of_a_file_s_steps(answer: Answer) -> None:
    _, out, _ = answer(f"check model=1b --deepspeed f.json --partial --json train.tokens=1e6 {ON}")
    assert json.loads(out)["errors"] == []
    words = ["model=1b", "train.tokens=1e6", *ON.split()]
    found = launcher.check(words, deepspeed="f.json", partial=True)
    assert found.spec is not None
    assert (found.spec.train.tokens, found.spec.train.steps) == (10**6, None)
    plain = launcher.check(words[:1] + words[2:], megatron_args="f.json", partial=True)
    assert plain.spec is not None
    assert plain.spec.steps == 7


def test_a_program_imports_and_checks_by_the_same_rule(answer: Answer) -> None:
    with pytest.raises(ConfigErrors) as caught:
        launcher.import_("deepspeed", "f.json")
    assert [error.path for error in caught.value.errors] == ["f.json: corpus", "f.json: vocabulary"]
    found = launcher.import_("megatron", "f.json", partial=True, variables={"TP": "8"})
    assert found.said[0].overrides == ("train.steps=7",)
    words = ["model=1b", *ON.split()]
    assert launcher.check(words, megatron_args="f.json", variables={"DATA": "x"}).verdict == "invalid"
    assert launcher.check(words, deepspeed="f.json", partial=True).verdict == "fits"
    with pytest.raises(ConfigErrors, match="must be one of accelerate, axolotl, deepspeed, hf, "):
        launcher.import_("nemo", "f.json")


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_hidden_layers": 22,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "strange_attention": 8,
}


@pytest.fixture
def own(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """A folder ``mine`` with a model of which a word that matters is left out."""
    Path("mine").mkdir()
    Path("mine/config.json").write_text(json.dumps(CONFIG))
    found = hugging_face.read(json.dumps(CONFIG), "config.json")
    left = LeftOut(key="strange_attention", value=8, effect="attention sees every token here", matters=True)
    imported = replace(found.imported, left_out=(left,))
    monkeypatch.setattr(own_models, "_read_once", lambda *_: replace(found, imported=imported))
    return answer


@pytest.mark.parametrize(
    "words", ["check model=./mine", "check --hf mine", "show model=./mine", "run --hf mine", "prepare model=./mine"]
)
def test_a_model_of_which_words_that_matter_are_left_out_is_refused_by_every_verb(words: str, own: Answer) -> None:
    status, out, _ = own(f"{words} {ON} --json")
    assert status == 2
    [error] = json.loads(out)["errors"]
    assert error["path"].endswith("mine/config.json: strange_attention")
    assert (error["found"], error["rule"]) == (8, "it is left out: attention sees every token here")
    assert error["way_out"] == ["run.partial=true"]


def test_partial_is_a_word_that_recipes_sweeps_and_points_take(own: Answer) -> None:
    text = "schema: 1\nsummary: s\nchoose: {model: ./mine}\nset: {run.partial: true}\n"
    Path("recipes").mkdir()
    Path("recipes/mine.yaml").write_text(text)
    points = ["model=./mine", *ON.split()]
    lines = [{"id": number, "overrides": [*points, *more]} for number, more in enumerate(([], ["run.partial=true"]))]
    Path("p.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert [json.loads(line)["verdict"] for line in own("check --points p.jsonl")[1].splitlines()] == [
        "invalid",
        "fits",
    ]
    for words in ("recipe=mine", "model=./mine --partial", "--hf mine --partial"):
        status, out, _ = own(f"check {words} {ON} --json")
        assert (status, json.loads(out)["verdict"]) == (0, "fits")
        rules = [warning["rule"] for warning in json.loads(out)["warnings"]]
        assert "the run goes without it: attention sees every token here" in rules
    for words, verdicts in (("", ["invalid", "fits"]), (" --partial", ["fits", "fits"])):
        found = json.loads(own(f"check -m model=./mine,1b{words} {ON} --json")[1])["points"]
        assert [point["verdict"] for point in found] == verdicts


def test_a_run_that_lacks_words_of_its_model_has_the_hash_of_the_same_run_and_says_so_in_its_record(
    own: Answer,
) -> None:
    hashes = set()
    for words in ("run.partial=true", "model.hidden_act=silu run.partial=true"):
        hashes.add(json.loads(own(f"check model=./mine {words} {ON} --json")[1])["spec_hash"])
    assert len(hashes) == 1
    lock = json.loads(own(f"recipe lock model=./mine run.partial=true {ON} --json")[1])["recipe"]
    assert lock["spec"]["run"]["partial"] is True


def test_a_preview_of_data_that_an_untrusted_file_names_is_not_made(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(text: str, path: str) -> Imported:
        ledger = Ledger({"data": "owner/conversations"})
        ledger.say("data", "data", "data.path")
        settings = {"data.path": "owner/conversations", "data.preview": 1}
        return ledger.imported(summary="", source="", choose={"data": "chat"}, settings=settings)

    monkeypatch.setattr(deepspeed, "read", read)
    status, _, said = answer(f"check model=1b --deepspeed f.json {ON}")
    assert status == 0
    assert "no preview: f.json, which names the data, is from elsewhere and not trusted (--trust)" in said
