"""Of steps and tokens the one that is typed counts; both are an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config import open_values
from launcher.config.request import request
from launcher.rules import batch
from launcher.spec import RunSpec
from tests.support.helpers import CPU_HOST, make_spec

RECIPE = "schema: 1\nsummary: x\nchoose: {model: tiny}\nset: {%s}\n"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recipes and an option of its own, composed once."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "recipes").mkdir()
    for name, said in {
        "steps": "train.steps: 500",
        "tokens": "train.tokens: 1000000",
        "both": "train.steps: 500, train.tokens: 1000000",
    }.items():
        (folder / "recipes" / f"{name}.yaml").write_text(RECIPE % said)
    (folder / "conf" / "train").mkdir(parents=True)
    (folder / "conf" / "train" / "long.yaml").write_text("defaults: [_base, _self_]\ntokens: 2000000\n")
    return folder


@pytest.fixture
def folder(written: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(written)
    return written


def lengths(spec: RunSpec) -> tuple[int | None, int | None]:
    return spec.train.steps, spec.train.tokens


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), (100, None)),
        (("train.tokens=1e6",), (None, 10**6)),
        (("train.tokens=null",), (100, None)),
        (("train.steps=null",), (100, None)),
        (("train.steps=null", "train.tokens=1e6"), (None, 10**6)),
        (("recipe=steps", "train.tokens=3e6"), (None, 3 * 10**6)),
        (("train.steps=9", "recipe=tokens"), (9, None)),
        (("recipe=steps", "train.tokens=null"), (500, None)),
        (("recipe=both", "train.steps=9"), (9, None)),
        (("train=long",), (None, 2 * 10**6)),
        (("train=long", "train.steps=9"), (9, None)),
        (("recipe=steps", "train=long"), (None, 2 * 10**6)),
    ],
)
def test_the_typed_length_takes_the_place_of_the_other(
    folder: Path, words: tuple[str, ...], expected: tuple[int | None, int | None]
) -> None:
    assert lengths(make_spec(*words, folder=folder)) == expected


@pytest.mark.parametrize("words", [("train.steps=500", "train.tokens=1e6"), ("recipe=both",)])
def test_both_lengths_in_one_place_are_an_error_with_two_ways_out(folder: Path, words: tuple[str, ...]) -> None:
    [error] = batch.check(make_spec(*words, folder=folder))
    assert (error.path, error.found) == ("train.tokens", 1_000_000)
    assert error.rule == "this determines the number of steps, but train.steps=500 is also set"
    assert error.way_out == ("train.steps=null", "train.tokens=null")
    for way in error.way_out:
        assert not list(batch.check(request([*words, way], facts=CPU_HOST).require()))


def test_resolving_leaves_the_keys_as_they_were() -> None:
    train = {"steps": None, "tokens": None}
    assert open_values.with_length(train, ()) == {"steps": 100, "tokens": None}
    assert train == {"steps": None, "tokens": None}
