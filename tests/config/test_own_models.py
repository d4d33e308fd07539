"""`model=./folder` and `model=org/name` as their user types them."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path

import pytest

from launcher.base import machine
from launcher.cli import main
from launcher.preflight import stored
from launcher.spec import RunSpec
from tests.support.foreign_files import LLAMA3_8B
from tests.support.helpers import CPU_HOST, ask, make_spec

SMALL = LLAMA3_8B | {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
REVISION = "f" * 40


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model, its sizes alone, and a Hub's cache with one model's config.json."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)
    cached = tmp_path / "cache" / "models--org--cached"
    for place in (Path("mine"), Path("sizes"), cached / "snapshots" / REVISION):
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(SMALL))
    (cached / "refs").mkdir()
    for name in ("main", "v1"):
        (cached / "refs" / name).write_text(REVISION)
    write_weights(Path("mine/model.safetensors"))
    Path("mine/tokenizer.json").touch()
    return tmp_path


def write_weights(path: Path) -> None:
    """A file of weights of the model's names and shapes, which takes no room on the disk: all are zero."""
    tensors, end = {}, 0
    for name, shape in (stored.expected(make_spec("model=./mine", "model.weights=null").model) or {}).items():
        tensors[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + 4 * math.prod(shape)]}
        end += 4 * math.prod(shape)
    assert tensors
    header = json.dumps(tensors).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)


def answer(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status, and all that was said with its lines joined."""
    status = main(words.split())
    printed = capsys.readouterr()
    return status, " ".join((printed.out + printed.err).split())


def sizes(spec: RunSpec) -> tuple[int, int, int, str]:
    model = spec.model
    return model.hidden_size, model.num_hidden_layers, model.vocab_size, model.family


@pytest.mark.parametrize("named", ["org/cached", "org/cached@v1", f"org/cached@{REVISION}"])
def test_a_model_of_the_hub_is_named_with_its_revision(named: str, folder: Path) -> None:
    spec = make_spec(f"model={named}", folder=folder)
    assert (spec.model.hidden_size, spec.model.weights) == (
        64,
        str(folder / f"cache/models--org--cached/snapshots/{REVISION}"),
    )


def test_weights_of_the_hub_are_the_folder_of_their_name_in_the_cache(folder: Path) -> None:
    spec = make_spec("model=./sizes", "model.weights=org/cached@v1", folder=folder)
    assert spec.model.weights == str(folder / f"cache/models--org--cached/snapshots/{REVISION}")


def test_weights_that_the_hub_does_not_send_are_refused_by_their_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    status, said = answer("check model=./sizes model.weights=org/other", capsys)
    assert status == 2
    assert "model.weights=org/other: " in said
    assert "model.weights=null" in said


def test_a_sweep_says_once_that_its_points_start_from_the_weights(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check", "-m", "model=./mine", "train.seed=1,2"])
    said = " ".join(capsys.readouterr().err.split())
    start = "warning: model.weights=./mine: training starts from these weights; null starts from random ones; try"
    assert said.count(f"{start} model.weights=null (points 000 001)") == said.count(start) == 1


def test_a_folder_is_the_model_of_its_config_with_its_weights_and_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = make_spec("model=./mine")
    assert sizes(spec) == (64, 2, 128256, "llama")
    digest = hashlib.sha256((folder / "mine" / "config.json").read_bytes()).hexdigest()[:12]
    assert spec.model.source == f"config.json of ./mine, sha256 {digest}"
    assert (spec.model.name, spec.model.weights) == ("mine", "./mine")
    status, said = answer("check model=./mine", capsys)
    assert status == 0
    assert said.startswith("FITS: ")
    assert " mine, fsdp, fp32;" in said
    assert "model.weights=./mine: training starts from these weights; null starts from random ones try" in said
    assert "its own tokenizer for its 128256 ids, which its weights were trained with try data.tokenizer=./mine" in said
    status, said = answer("check model=./mine model.weights=null data.tokenizer=bytes", capsys)
    assert "training starts" not in said
    assert "its own tokenizer" not in said, "what was typed is meant"


@pytest.mark.parametrize(
    ("typed", "weights"),
    [
        ("mine/", "mine"),
        ("../{name}/mine", "../{name}/mine"),
        ("./sizes", None),
        ("./mine/config.json", None),
        ("~/mine", "{home}/mine"),
        ("{home}/mine", "{home}/mine"),
    ],
)
def test_a_path_may_be_spelt_in_every_way_and_a_file_stands_for_the_sizes(
    typed: str, weights: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    spec = make_spec(f"model={typed.format(home=folder, name=folder.name)}")
    assert sizes(spec) == (64, 2, 128256, "llama")
    expected = weights and weights.format(home=folder, name=folder.name)
    assert spec.model.weights == expected


def test_every_word_wins_over_the_folder(folder: Path) -> None:
    for words in (("model=./mine", "model.num_hidden_layers=7"), ("model.num_hidden_layers=7", "model=./mine")):
        assert make_spec(*words).model.num_hidden_layers == 7
    assert make_spec("model=./mine", "model=tiny").model.name == "tiny"
    Path("recipes").mkdir()
    Path("recipes/r.yaml").write_text(
        "schema: 1\nsummary: s\nchoose: {model: ./mine}\nset: {model.num_hidden_layers: 3}\n"
    )
    assert sizes(make_spec("recipe=r")) == (64, 3, 128256, "llama")
    assert make_spec("recipe=r", "model=tiny").model.num_hidden_layers == 4


def test_the_option_hf_is_the_same_word(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("--hf mine", "--hf ./mine", "model=./mine"):
        assert main(["check", "--json", *words.split()]) == 0
    hashes = {json.loads(line)["spec_hash"] for line in capsys.readouterr().out.splitlines()}
    assert hashes == {make_spec("model=./mine").hash}
    status, said = answer("run --hf mine model=tiny", capsys)
    assert (status, said) == (
        2,
        "error: model=tiny: --hf and this word both choose the model: use one of them try model=./mine",
    )


def test_a_sweep_and_points_take_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--json", "-m", "model=./mine,tiny,./nope"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [(point["overrides"], point["verdict"]) for point in points] == [
        (["model=./mine"], "fits"),
        (["model=tiny"], "fits"),
        (["model=./nope"], "invalid"),
    ]
    Path("p.jsonl").write_text(json.dumps({"id": 1, "overrides": ["model=./mine"]}) + "\n")
    assert main(["check", "--points", "p.jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["spec_hash"] == make_spec("model=./mine").hash


def test_a_saved_recipe_holds_the_sizes_and_needs_the_folder_no_more(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = make_spec("model=./mine", "train.steps=3")
    assert main(["recipe", "save", "kept", "model=./mine", "train.steps=3"]) == 0
    (folder / "mine" / "config.json").unlink()
    assert make_spec("recipe=kept") == before
    assert "choose" not in Path("recipes/kept.yaml").read_text()


def test_an_import_of_a_folder_has_its_weights_and_one_of_a_file_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "hf", "mine"]) == 0
    assert "model.weights=mine" in capsys.readouterr().out
    assert main(["import", "hf", "mine/config.json"]) == 0
    assert "model.weights" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("model=mine", "qwen3_next_80b_a3b, tiny try model=./mine"),
        ("model=./mini", "no such folder, and a name on the Hub is organization/model try model=./mine"),
        ("model=a/b/c", "there is no such folder, and a name on the Hub is organization/model try launch show model"),
        ("model=.", "the folder has no config.json, which describes the model try model=./broken or model=./mine"),
        ("model=./lora", "it holds a LoRA adapter, not a model: name the folder of its base model"),
        ("model=./pickled", "its weights are in pytorch_model.bin, but only model.safetensors and"),
        (
            "model=./other",
            "model_type=bert: this is an encoder, which predicts masked words, and launch trains only models",
        ),
        ("model=./other", "only models that predict the next token try script=path/to/train.py without model="),
        ("model=./broken", "a config.json must be valid JSON: Expecting value"),
        ("model=./mine/large", "this is not a config.json: these have a few kilobytes, and it has 1,048,577"),
        ("model=./nothing/", "there is no such folder"),
    ],
)
def test_a_folder_that_is_no_model_is_explained(
    word: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, file, text in (
        ("lora", "adapter_config.json", "{}"),
        ("pickled", "config.json", json.dumps(SMALL)),
        ("pickled", "pytorch_model.bin", ""),
        ("other", "config.json", '{"model_type": "bert"}'),
        ("broken", "config.json", "hello"),
        ("mine", "large", "x" * (1 << 20) + "x"),
    ):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / file).write_text(text)
    status, found = answer(f"check {word}", capsys)
    assert status == 2
    assert said.replace(" ", "") in found.replace(" ", "")


def test_weights_of_another_format_may_be_left_aside(folder: Path) -> None:
    (folder / "sizes" / "pytorch_model.bin").touch()
    assert ask("model=./sizes").errors
    assert make_spec("model=./sizes", "model.weights=null").model.weights is None


def test_weights_of_a_model_of_images_are_not_those_of_the_language_model_in_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {"model_type": "llava", "text_config": SMALL, "vision_config": {"hidden_size": 64}}
    (folder / "mine" / "config.json").write_text(json.dumps(whole))
    why = "the tensors of text_config have other names, which this version does not read: it starts from random weights"
    assert main(["import", "hf", "mine"]) == 0
    printed = capsys.readouterr()
    assert "model.weights" not in printed.out
    assert f"note: the weights in mine: {why}" in " ".join(printed.err.split())
    status, found = answer("check model=./mine", capsys)
    assert status == 2
    assert f"its weights cannot be used: {why} with null" in found
    assert make_spec("model=./mine", "model.weights=null").model.weights is None
    status, found = answer("check model=./mine model.weights=null", capsys)
    assert status == 0
    assert (
        "only the language model of text_config is counted and trained, without the encoders of images or sound"
        in found
    )


def test_a_model_of_the_hub_that_was_fetched_once_needs_no_network_and_its_weights_are_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder / "cache" / "models--org--cached" / "snapshots" / REVISION
    spec = make_spec("model=org/cached")
    assert sizes(spec) == (64, 2, 128256, "llama")
    assert (spec.model.name, spec.model.weights) == ("cached", str(place))
    assert spec.model.source.startswith("config.json of org/cached on the Hub, revision ffffffffffff, sha256 ")
    status, said = answer("check model=org/cached", capsys)
    command = f"hf download org/cached --revision {REVISION} --include '*.safetensors*'"
    assert status == 0
    assert f"the weights on the Hub, which are not fetched yet: fetch them before the run try {command}" in said
    assert f"data.tokenizer={place}" in said
    status, said = answer("run model=org/cached", capsys)
    assert status == 2
    assert f"the weights are not fetched yet try {command}" in said
    (place / "model.safetensors").touch()
    assert "training starts from these weights" in answer("check model=org/cached", capsys)[1]


def test_a_folder_of_the_same_name_comes_before_the_hub_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    place = Path("org/cached")
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(SMALL | {"hidden_size": 128}))
    status, said = answer("check model=org/cached", capsys)
    assert status == 0
    assert make_spec("model=org/cached").model.hidden_size == 128
    assert "the local folder of this name is used, not a model on the Hub try model=./org/cached" in said


def test_a_recipe_from_elsewhere_fetches_nothing_and_leaves_the_folder_only_when_trusted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("theirs.yaml").write_text("schema: 1\nsummary: s\nchoose: {model: org/elsewhere}\n")
    status, said = answer("check recipe=theirs.yaml", capsys)
    assert status == 2
    assert "not in your cache: fetch it yourself try launch check model=org/elsewhere" in said
    Path("theirs.yaml").write_text(f"schema: 1\nsummary: s\nchoose: {{model: {folder}/mine}}\n")
    status, said = answer("run recipe=theirs.yaml", capsys)
    assert status == 2
    assert "leaves the working folder; it is not in recipes/, runs/ or conf/ of the working folder" in said
    assert "try --trust or launch recipe trust" in said
