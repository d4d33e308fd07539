"""Named data sets of evaluations: what each takes from ``data``, what is looked at before, and what is no such list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.base.errors import ConfigErrors
from launcher.data.look import look
from launcher.data.prepare import digest_of, prepared
from launcher.data.unusable import Unusable
from launcher.preflight import findings
from launcher.preflight.data import seen
from launcher.spec import edit
from launcher.spec.parse import parse, to_dict
from tests.support.helpers import make_spec

ONE = ("model=tiny", "cluster.gpus_per_node=1", "train.micro_batch_size=1", "train.sequence_length=32")
EVALUATES = (*ONE, "train.eval_every=7")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    for name, letters in (("a", 3201), ("b", 801), ("c", 333)):
        (tmp_path / f"{name}.txt").write_text(name * letters)
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"question": "dd", "answer": "e" * n}) + "\n" for n in (3, 5)))
    return tmp_path


def test_a_set_takes_from_data_what_it_does_not_say_itself() -> None:
    hub = ("data=huggingface", "data.path=a/b", "data.revision=r", "data.config=c", "data.split=some", "data.column=d")
    sets = "data.eval_sets=[{name: one, path: a/b},{name: two, path: e/f, split: test, config: g, max_samples: 5}]"
    spec = make_spec(*EVALUATES, *hub, "data.max_samples=9", sets)
    assert parse(to_dict(spec)) == spec
    found = {
        name: (each.path, each.revision, each.config, each.split, each.column, each.max_samples, each.eval_sets)
        for name, each in spec.data.evaluated.items()
    }
    assert found == {
        "one": ("a/b", None, None, "some", "d", None, ()),
        "two": ("e/f", None, "g", "test", "d", 5, ()),
    }
    of_a_mix = make_spec(*EVALUATES, "data=text", "data.mix=[{path: x, column: y},{path: z}]", sets)
    assert [(each.path, each.column) for each in of_a_mix.data.sets] == [
        *(("x", "y"), ("z", "text"), ("a/b", "y"), ("e/f", "y")),
    ]


def test_the_unnamed_set_is_one_of_them() -> None:
    words = ("data=huggingface", "data.path=a/b", "data.revision=r", "data.config=c")
    own, other = (make_spec(*EVALUATES, *words, word).data for word in ("data.eval_split=s", "data.eval_path=d/e"))
    [(name, found)] = own.evaluated.items()
    assert (name, found.path, found.split, found.revision, found.config) == ("", "a/b", "s", "r", "c")
    [(name, found)] = other.evaluated.items()
    assert (name, found.path, found.split, found.revision, found.config) == ("", "d/e", "train", None, None)
    assert make_spec(*EVALUATES, *words).data.evaluated == {}


def test_token_ids_of_each_set_stand_behind_those_that_are_trained(texts: Path) -> None:
    sets = f"data.eval_sets=[{{name: b, path: {texts}/b.txt}},{{name: c, path: {texts}/c.txt}}]"
    spec = make_spec(*EVALUATES, "data=text", f"data.path={texts}/a.txt", "train.epochs=1", sets)
    folder = prepared(spec.data, texts / "cache")
    assert [span.tokens.stop - span.tokens.start for span in folder.spans] == [3201, 801, 333]
    assert spec.data.samples == spec.steps == 100, "nothing of what is trained on is held out"
    renamed = edit.changed(spec, "data.eval_sets", spec.data.eval_sets[::-1])
    assert digest_of(renamed.data) != digest_of(spec.data)
    alone = make_spec(*EVALUATES, "data=text", f"data.path={texts}/a.txt", f"data.eval_path={texts}/b.txt")
    one = make_spec(
        *EVALUATES, "data=text", f"data.path={texts}/a.txt", f"data.eval_sets=[{{name: x, path: {texts}/b.txt}}]"
    )
    assert digest_of(one.data) == digest_of(alone.data), "the same ids, whatever the set is called"


def test_a_set_may_be_of_another_kind_and_have_other_columns(texts: Path) -> None:
    sets = f"data.eval_sets=[{{name: text, path: {texts}/b.txt, source: text}},{{name: own, path: {texts}/d.jsonl}}]"
    chat = ("data=chat", f"data.path={texts}/d.jsonl")
    spec = make_spec(*EVALUATES, *chat, sets)
    assert (findings.errors(spec), seen(spec).errors) == ((), ())
    folder = prepared(spec.data, texts / "cache")
    assert [span.documents.stop - span.documents.start for span in folder.spans] == [2, 1, 2]


def test_a_fault_is_named_by_the_set_that_has_it(texts: Path) -> None:
    path = f"data.path={texts}/a.txt"
    sets = f"data.eval_sets=[{{name: b, path: {texts}/b.txt}},{{name: c, path: {texts}/none.txt}}]"
    with pytest.raises(Unusable, match=r"data\.eval_sets\.1\.path=.*none\.txt: no file matches"):
        look(make_spec(*EVALUATES, "data=text", path, sets).data)
    rows = ("data=rows", f"data.path={texts}/d.jsonl", f"data.eval_sets=[{{name: d, path: {texts}/d.jsonl}}]")
    rule = r"data\.eval_sets\.0\.path=.*task=dpo evaluates on rows with chosen, rejected; these have question, answer"
    with pytest.raises(Unusable, match=rule):
        look(make_spec(*EVALUATES, "task=dpo", "parallel=fsdp", *rows).data, "dpo")
    blank = make_spec(*EVALUATES, "data=text", path, "data.eval_sets=[{name: b, path: ''}]")
    with pytest.raises(Unusable, match=r"data\.eval_sets\.0\.path"):
        look(blank.data)


@pytest.mark.parametrize(
    "value", ["{}", "[{}]", "code", "[code]", "[{name: code}]", "[{name: code, path: a, wait: 1}]"]
)
def test_what_is_no_list_of_named_sets_is_refused_with_one_that_is(value: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        make_spec(*EVALUATES, "data=text", "data.path=x", f"data.eval_sets={value}")
    [error] = caught.value.errors
    assert error.path == "data.eval_sets"
    assert error.rule == (
        "must be a list, each {name: code, path: a}, optionally with source, split, config, revision, column,"
        " template, max_samples, columns"
    )
    assert [*make_spec(*EVALUATES, "data=text", *error.way_out).data.evaluated] == ["code", "math"]


@pytest.mark.parametrize(
    ("name", "renamed"),
    [("a/b", "a-b"), ("a b", "a-b"), ("-a", "a"), ("..", "set"), ("", "set"), ("ü", "set"), ("held_out-1.5", None)],
)
def test_a_name_is_one_that_every_tracker_takes(name: str, renamed: str | None) -> None:
    words = ("data=text", "data.path=x", f"data.eval_sets=[{{name: x, path: p}}, {{name: '{name}', path: q}}]")
    found = [error for error in findings.errors(make_spec(*EVALUATES, *words)) if "name" in error.path]
    assert [(error.path, error.found) for error in found] == ([("data.eval_sets.1.name", name)] if renamed else [])
    for error in found:
        [way] = error.way_out
        assert [*make_spec(*EVALUATES, *words, way).data.evaluated] == ["x", renamed]


def test_a_name_is_taken_once_and_eval_path_stands_alone() -> None:
    sets = "data.eval_sets=[{name: a, path: p},{name: a, path: q},{name: a-2, path: r}]"
    found = findings.errors(make_spec(*EVALUATES, "data=text", "data.path=x", "data.eval_split=s", sets))
    named = [error for error in found if error.path.startswith("data.eval")]
    assert [error.path for error in named] == ["data.eval_split", "data.eval_sets.1.name", "data.eval_sets.2.name"]
    assert "[{path:p,name:a},{path:q,name:a-2},{path:r,name:a-2-2}]" in named[1].way_out[0]
