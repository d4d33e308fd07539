"""Recipes are data that comes before the user's own words."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.base.errors import ConfigErrors
from launcher.base.package import shipped
from launcher.cli import main
from launcher.config import recipes, safe_yaml
from launcher.config.catalog import Catalog
from launcher.config.overrides import Override
from launcher.config.recipes import literal
from launcher.preflight import assess
from launcher.preflight.plan import translate
from tests.support.helpers import ask, assert_golden, make_spec
from tests.support.recipe_schema import recipe_schema


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.yaml").write_text(
        "schema: 1\nsummary: a test\nsource: none\n"
        "choose: {model: tiny, parallel: zero3, optimizer: sgd}\n"
        "set: {train.micro_batch_size: 3, optimizer.lr: 0.5, adapter.targets: [a, b c], run.name: '7'}\n"
    )
    return tmp_path


def write(folder: Path, text: str) -> tuple[str, ...]:
    (folder / "recipes" / "broken.yaml").write_text(text)
    return tuple(error.rule for error in ask("recipe=broken", folder=folder).errors)


def test_a_recipe_chooses_and_sets(folder: Path) -> None:
    spec = make_spec("recipe=mine", folder=folder)
    assert (spec.backend.name, spec.zero.stage, spec.train.micro_batch_size) == ("deepspeed", 3, 3)
    assert (spec.optimizer.name, spec.optimizer.lr, spec.run.name) == ("sgd", 0.5, "7")
    assert spec.adapter.targets == ("a", "b c")


def test_the_command_line_wins_in_any_position(folder: Path) -> None:
    for words in (("recipe=mine", "train.micro_batch_size=5"), ("train.micro_batch_size=5", "recipe=mine")):
        assert make_spec(*words, folder=folder).train.micro_batch_size == 5


def test_choosing_a_group_drops_what_the_recipe_set_inside_it(folder: Path) -> None:
    spec = make_spec("recipe=mine", "optimizer=adamw", folder=folder)
    assert (spec.optimizer.name, spec.optimizer.lr) == ("adamw", make_spec("model=tiny").optimizer.lr)


def test_a_recipe_is_read_once_as_long_as_it_stays_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    real = safe_yaml.load

    def load(path: Path) -> object:
        seen.append(path)
        return real(path)

    monkeypatch.setattr("launcher.config.safe_yaml.load", load)
    monkeypatch.chdir(folder)
    for words in ("check", "recipe=mine"), ("check", "-m", "recipe=mine", "train.seed=1,2,3"):
        assert main(words) == 0
    path = folder / "recipes" / "mine.yaml"
    assert seen == [path]
    path.write_text(path.read_text().replace("train.micro_batch_size: 3", "train.micro_batch_size: 12"))
    assert make_spec("recipe=mine", folder=folder).train.micro_batch_size == 12


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[1, 2]", "a recipe is a mapping of schema, summary, source, choose, set, sweep"),
        ("schema: 2\nsummary: x\n", "must be 1"),
        ("schema: 1\n", "one line of text is required"),
        ("schema: 1\nsummary: x\nchoose: [a]\n", "must be a mapping"),
        (
            "schema: 1\nsummary: x\nrun: ls\n",
            "a recipe holds only schema, summary, source, choose, set, sweep",
        ),
        ("schema: 1\nsummary: x\nset: {train.stpes: 3}\n", "there is no such group or key"),
    ],
)
def test_a_broken_recipe_is_explained(folder: Path, text: str, rule: str) -> None:
    assert rule in write(folder, text)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            "summary: !!python/object/apply:os.system ['touch pwned']",
            "tags are not allowed: the file must be plain data",
        ),
        ("summary: !x y", "tags are not allowed: the file must be plain data"),
        ("summary: &a x\nsource: *a", "anchors and aliases are not allowed"),
        (f"summary: {'[' * 5000}", "it is nested deeper than 12"),
        ("summary: x\nsummary: y", "the key 'summary' has one value in line 2 and another in line 3"),
        ("summary: x\n1: y", "the key 1 must be text"),
        ("summary: 2026-01-01", "dates and binary data are not allowed: quote it as text"),
        ("summary: x\nset: {run.name: '${oc.env:HOME}'}", "a recipe cannot interpolate: ${...} is not allowed"),
        ("summary: x\nset: {data.path: [a, '${x}']}", "a recipe cannot interpolate: ${...} is not allowed"),
        ("summary: x\nchoose: {model: [a]}", "must be the name of an option"),
        ("summary: x\nsweep: {train.seed: 3}", "must be a list of values"),
        ("summary: x\nchoose: {cluster.setup: '[ls]'}", "choose takes names of groups"),
        ("summary: x\nchoose: {script: a.py}", "choose takes names of groups"),
        ("summary: x\nchoose: {recipe: tiny_cpu}", "choose takes names of groups"),
        ("summary: x\nset: {'script=a.py': 1}", "must be a group or a key, without + and ="),
        ("summary: x\nset: {+cluster.environment.A: b}", "must be a group or a key, without + and ="),
        ("summary: x\nsweep: {recipe: [a]}", "must be a group or a key, without + and ="),
        ('summary: "x\\u202e"', "each text must be a single line without control characters"),
        (f"summary: x\nset: {{train.steps: 1{':1' * 100_000}}}", "a number may have at most 40 characters"),
        ("summary: x\nset: {train.steps: 1:30}", "is a base-60 number in YAML 1.1: if it is text, quote it"),
        (f"summary: x\nset: {{train.steps: {'9' * 400}}}", "a number may have at most 40 characters"),
        ("summary: x\nset: {train.steps: 99999999999999999999}", "must fit in 64 bits, as every setting does"),
        (f"summary: x\nset: {{data.path: [{'1,' * 200_000}]}}", "it holds more than 100,000 values"),
        ('summary: "x\\e[2J"', "each text must be a single line without control characters"),
        ("summary: x\n  - y: [", "it is not valid YAML: "),
        (f"summary: {'x' * (1 << 20)}", "it is larger than 1 MiB"),
    ],
)
def test_a_recipe_is_plain_data(folder: Path, text: str, rule: str) -> None:
    (found,) = write(folder, f"schema: 1\n{text}\n")
    assert rule in found


def test_a_number_in_scientific_notation_is_a_number(folder: Path) -> None:
    assert not write(folder, "schema: 1\nsummary: x\nchoose: {model: tiny}\nset: {optimizer.lr: 1e-5}\n")
    assert make_spec("recipe=broken", folder=folder).optimizer.lr == 1e-5


SHIPPED = sorted(shipped("recipes").glob("*.yaml"))
_NAME = re.compile(r"_(?P<gpus>[0-9]+)x(?P<gigabytes>[0-9]+)g$")


def test_at_least_twelve_recipes_are_shipped() -> None:
    assert len(SHIPPED) >= 12


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_fits_the_hardware_in_its_name_and_becomes_a_job(path: Path) -> None:
    spec = make_spec(f"recipe={path.stem}")
    assessment = assess.assess(spec)
    assert not assessment.errors
    assert assessment.verdict.name == "fits"
    assert recipes.load(path).source
    assert re.match(rf"# launch (check )?(-m )?recipe={path.stem}\b", path.read_text())
    assert translate(spec, python="python").argv
    named = _NAME.search(path.stem)
    if named is not None:
        assert spec.gpus == int(named["gpus"])
        assert spec.hardware.memory_bytes is not None
        assert 0.9 < spec.hardware.memory_bytes / (int(named["gigabytes"]) * 10**9) < 1.1


@pytest.mark.parametrize("path", [path for path in SHIPPED if recipes.load(path).sweep], ids=lambda path: path.stem)
def test_a_shipped_sweep_has_points_that_fit_and_none_that_is_invalid(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "-m", "--json", f"recipe={path.stem}"]) == 0
    verdicts = [point["verdict"] for point in json.loads(capsys.readouterr().out)["points"]]
    assert len(verdicts) >= 4
    assert "invalid" not in verdicts


def test_the_list_says_what_each_recipe_trains_and_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["recipe"]}
    assert set(rows) == {path.stem for path in SHIPPED}
    row = rows["llama3_70b_tp8_pp4_64x80g"]
    assert (row["model"], row["gpus"], row["strategy"]) == ("llama3_70b", 64, "megatron tp8 pp4 dp2")
    assert row["predicted_bytes"] > 2**34
    assert main(["recipe", "list"]) == 0
    assert "llama3_70b_tp8_pp4_64x80g" in capsys.readouterr().out


def test_a_broken_recipe_is_a_line_of_the_list(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(Catalog, "recipes", (folder / "recipes",))  # The shipped ones take a second each time.
    broken = {"syntax": "a: [", "unknown": "schema: 1\nsummary: x\nchoose: {model: nope}\n", "binary": "\udcff"}
    for name, text in broken.items():
        (folder / "recipes" / f"{name}.yaml").write_bytes(text.encode(errors="surrogateescape"))
    (folder / "recipes" / "folder.yaml").mkdir()
    (folder / "recipes" / "whole.yaml").write_text("schema: 1\nsummary: whole\nchoose: {model: tiny}\n")
    assert main(["recipe", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["recipe"]}
    reasons = {name: row["reason"] for name, row in rows.items() if row["verdict"] == "invalid"}
    assert set(reasons) == {*broken, "folder"}
    assert "it is not valid YAML: while parsing a flow node" in reasons["syntax"]
    assert "there is no such option; model has" in reasons["unknown"]
    assert reasons["binary"].endswith("binary.yaml: it cannot be read: it is not UTF-8 text")
    assert rows["whole"]["reason"] is None
    assert rows["whole"].keys() == rows["syntax"].keys()
    assert main(["recipe", "list"]) == 0
    assert "it is not valid YAML: while parsing" in " ".join(capsys.readouterr().out.split())


def test_the_schema_for_editors_is_what_the_types_say_and_knows_the_shipped_recipes() -> None:
    schema = recipe_schema(Catalog(folder=Path("/")))
    assert_golden("../../recipes/recipe.schema.json", json.dumps(schema, indent=1) + "\n")
    judge = jsonschema.Draft202012Validator(schema)
    judge.check_schema(schema)
    for path in SHIPPED:
        judge.validate(safe_yaml.load(path))
    wrong = {"schema": 1, "summary": "x", "set": {"train.seed": -1, "train.stpes": 1, "zero.offload_optimizer": "gpu"}}
    messages = " ".join(error.message for error in judge.iter_errors(wrong))
    assert all(word in messages for word in ("minimum", "stpes", "gpu"))


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=10).filter(
    lambda text: "${" not in text
)


@given(st.one_of(SCALARS, TEXTS, st.lists(st.one_of(SCALARS, TEXTS), max_size=3)))
def test_a_value_comes_back_from_the_override_grammar_as_it_was(value: object) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    text = Override("", "data.path", literal(value), group=False).hydra
    parsed = OverridesParser.create().parse_override(text)
    assert not parsed.is_sweep_override()
    assert parsed.value() == value


def test_a_recipe_is_shown_as_words_that_a_shell_takes_as_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "recipes" / "hostile.yaml").write_text(
        'schema: 1\nsummary: x\nchoose: {model: $(touch a)}\nset: {run.name: "\'`touch b`", adapter.targets: [c]}\n'
    )
    monkeypatch.chdir(folder)
    assert main(["recipe", "show", "hostile"]) == 0
    command = capsys.readouterr().out.split("\n", 1)[1].replace(" \\\n", " ")
    assert shlex.split(command) == ["launch", *recipes.load(folder / "recipes" / "hostile.yaml").overrides()]


def test_a_recipe_that_sweeps_is_shown_as_the_command_of_that_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    name = "llama2_7b_sequence_lengths_8x80g"
    assert main(["recipe", "show", name]) == 0
    words = shlex.split(capsys.readouterr().out.split("\n", 2)[2].replace(" \\\n", " "))[1:]
    assert words[0] == "-m"
    points = []
    for command in (words, ["-m", f"recipe={name}"]):
        assert main(["check", "--json", *command]) == 0
        points.append(json.loads(capsys.readouterr().out)["points"])
    assert points[0] == points[1]


def test_what_is_wrong_with_a_recipe_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("schema: 1\n")
    with pytest.raises(ConfigErrors) as raised:
        recipes.load(path)
    assert [error.path for error in raised.value.errors] == [f"{path}: summary"]
