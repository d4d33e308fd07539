"""Recipes are data that comes before the user's own words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.command_line import Override
from launcher.recipes import literal
from tests.helpers import ask, make_spec


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


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[1, 2]", "a recipe is a mapping of schema, summary, source, choose, set, sweep"),
        ("schema: 2\nsummary: x\n", "must be 1"),
        ("schema: 1\n", "one line of text is required"),
        ("schema: 1\nsummary: x\nchoose: [a]\n", "must be a mapping"),
        (
            "schema: 1\nsummary: x\nrun: ls\n",
            "a recipe holds schema, summary, source, choose, set, sweep and nothing else",
        ),
        ("schema: 1\nsummary: x\nset: {train.stpes: 3}\n", "there is no such group or key"),
    ],
)
def test_a_broken_recipe_is_explained(folder: Path, text: str, rule: str) -> None:
    assert rule in write(folder, text)


def test_a_recipe_runs_nothing(folder: Path) -> None:
    (rule,) = write(folder, "schema: 1\nsummary: !!python/object/apply:os.system ['touch pwned']\n")
    assert rule.startswith("it is not YAML: could not determine a constructor")


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
