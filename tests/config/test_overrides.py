"""What is said about overrides that are wrong, and which ones are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config.catalog import Catalog
from launcher.config.overrides import Override, read
from tests.support.helpers import ask

CATALOG = Catalog(folder=Path("/nonexistent"))


def only_error(text: str) -> tuple[str, tuple[str, ...]]:
    overrides, errors = read([text], CATALOG)
    assert not overrides
    assert len(errors) == 1
    return f"{errors[0].path}: {errors[0].rule}", errors[0].way_out


@pytest.mark.parametrize(
    ("text", "message", "way_out"),
    [
        ("precison=fp8", "precison: there is no such group or key", "precision=fp8"),
        ("parallel.tensr=2", "parallel.tensr: there is no such group or key", "parallel.tensor=2"),
        ("tensor=2", "tensor: there is no such group or key", "parallel.tensor=2"),
        ("train.sq=3", "train.sq: there is no such group or key", "train.seed=3"),
        ("modle=7b", "modle: there is no such group or key", "model=7b"),
        ("chek", "chek: an override is group=option or group.key=value", "launch check"),
        ("7b", "7b: an override is group=option or group.key=value", "model=7b"),
        (
            "+precison=fp8",
            "+precison: `+` creates a key only below backend.extra, cluster.extra, cluster.environment, data.columns, "
            "data.special_tokens, data.template_values, model.extra, model.rope_parameters",
            "precision=fp8",
        ),
    ],
)
def test_a_misspelt_override_says_the_rule_and_what_may_have_been_meant(text: str, message: str, way_out: str) -> None:
    said, ways = only_error(text)
    assert said == message
    assert way_out in ways


def test_an_unknown_option_lists_the_options_of_its_group() -> None:
    said, ways = only_error("precision=bf61")
    assert said == "precision: there is no such option; precision has bf16, fp16, fp32, fp8, mxfp8, nvfp4"
    assert ways == ("precision=bf16",) or "precision=bf16" in ways


def test_keys_are_neither_deleted_nor_moved() -> None:
    assert only_error("~model")[0] == "~model: keys cannot be deleted or moved to another package"
    assert only_error("model@x=7b")[0] == "model@x: keys cannot be deleted or moved to another package"


def test_a_private_option_cannot_be_chosen() -> None:
    said, _ = only_error("model=_base")
    assert said.startswith("model: there is no such option; model has")


def test_a_name_given_to_the_run_group_is_taken_for_run_name() -> None:
    assert only_error("run=first")[1] == ("run.name=first",)


def test_keys_below_extra_need_no_plus() -> None:
    overrides, errors = read(["backend.extra.a=1", "+backend.extra.b.c=2", "cluster.environment.FOO=x"], CATALOG)
    assert not errors
    assert [override.hydra[:2] for override in overrides] == ["++"] * 3


def test_all_errors_of_a_command_line_come_at_once() -> None:
    request = ask("precison=fp8", "train.micro_batch_size=0", "checkpointing.mode=ful", "optimizer.lr=fast")
    assert [error.path for error in request.errors] == [
        "precison",
        "checkpointing.mode",
        "optimizer.lr",
        "train.micro_batch_size",
    ]
    assert request.spec is not None, "the remaining overrides still make a specification that rules can judge"


def test_several_values_are_refused_where_one_run_starts() -> None:
    request = ask("train.steps=1,2")
    assert [(error.path, error.rule) for error in request.errors] == [
        ("train.steps", "several values make a sweep, but this starts one run")
    ]
    assert request.errors[0].way_out == ("train.steps=1", "-m train.steps=1,2")
    [commas] = ask("data.path=/data/a,b.txt").errors
    assert commas.way_out == ("-m data.path=/data/a,b.txt", "\"data.path='/data/a,b.txt'\""), "a path may have commas"


def test_only_values_that_read_the_same_without_a_grammar_are_plain() -> None:
    def plain(value: str) -> object:
        return Override("", "train.steps", value, group=False).plain()

    assert plain("1e-3") == (True, 1e-3)
    assert plain("12") == (True, 12)
    assert plain("True") == (True, True)
    assert plain("null") == (True, None)
    assert plain("a/b.txt") == (True, "a/b.txt")
    assert plain("[1,b]") == (True, [1, "b"])
    assert plain("'x y'") == (True, "x y")
    for grammar in ("[a,[b]]", "'${x}'", "${model.name}", "a b", "nan", "007", "1_000", "a=b", "x,y", "", "choice(1)"):
        assert plain(grammar) == (False, None), grammar
