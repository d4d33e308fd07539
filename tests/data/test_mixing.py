"""Several data sets as one: how much of each an epoch has, what is counted before the run, and a set to evaluate on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from launcher.base.errors import ConfigErrors
from launcher.data import hub
from launcher.data.epoch import samples_drawn, sizes_of, steps_of, trained
from launcher.data.look import look
from launcher.data.prepare import prepared
from launcher.data.unusable import Unusable
from launcher.preflight import findings
from launcher.preflight.data import seen
from launcher.preflight.plan import translate
from launcher.spec.parse import parse, to_dict
from launcher.views.check import sentences
from launcher.worker.data.corpus import Mix, Synthetic, TokenFiles
from tests.support.helpers import make_spec

ONE = ("cluster.gpus_per_node=1", "train.micro_batch_size=1", "train.sequence_length=32")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    for name, letters in (("a", 3201), ("b", 801), ("c", 333)):
        (tmp_path / f"{name}.txt").write_text(name * letters)
        rows = [{"prompt": f"{name}{n}", "completion": "yes" * (n % 5 + 1)} for n in range(letters // 40)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_every_sample_is_in_an_epoch_and_numbers_are_as_the_weights() -> None:
    assert samples_drawn([30, 12], ()) == [30, 12]
    assert samples_drawn([30, 12], (1.0, 1.0)) == [30, 30]
    assert samples_drawn([100, 10, 7], (0.5, 0.3, 0.2)) == [100, 60, 40]
    assert samples_drawn([100, 90], (0.9, 0.1)) == [810, 90]


@pytest.mark.parametrize(
    ("kind", "suffix", "packing"),
    [("text", "txt", "concat"), ("chat", "jsonl", "documents"), ("chat", "jsonl", "none")],
)
def test_a_mix_has_the_samples_that_were_counted_before(texts: Path, kind: str, suffix: str, packing: str) -> None:
    mix = f"data.mix=[{{path: {texts}/a.{suffix}, weight: 1}},{{path: {texts}/b.{suffix}, weight: 2}}]"
    words = (f"data={kind}", mix, f"data.eval_path={texts}/c.{suffix}", f"data.packing={packing}")
    spec = make_spec("model=tiny", *ONE, *words, "train.epochs=2", "train.eval_every=7")
    assert parse(to_dict(spec)) == spec
    survey = look(spec.data)
    assert survey is not None
    sizes = sizes_of(spec, survey) or []
    assert spec.data.samples == trained(spec, sizes) >= 3 * max(sizes) // 2
    folder = prepared(spec.data, texts / "cache")
    assert spec.steps == steps_of(spec, folder)
    assert len(folder.spans) == 3
    ids = np.memmap(folder.path / "tokens.bin", dtype=folder.dtype, mode="r")
    starts = [chr(ids[span.tokens.start]) for span in folder.spans]
    assert starts == ["a", "b", "c"] or kind == "chat"


def test_a_set_begins_again_where_its_share_is_larger_than_it_is(tmp_path: Path) -> None:
    for name, size in (("a", 40), ("b", 10)):
        np.full(size * 4 + 1, ord(name), dtype=np.uint16).tofile(tmp_path / name)
    parts = [TokenFiles([tmp_path / name], "uint16", length=4, vocabulary=256) for name in "ab"]
    mixed = Mix(parts, (1.0, 1.0))
    rows = [int(mixed.sample(index)[0]) for index in range(mixed.size)]
    assert (mixed.size, rows.count(ord("a")), rows.count(ord("b"))) == (80, 40, 40)
    assert Mix([Synthetic(8, 4, 0, size=3), Synthetic(8, 4, 0, size=2)], ()).size == 5


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("data.mix=[{path: a, weight: 1},{path: b}]",), "data.mix"),
        (("data.mix=[{path: a}]", "data.path=b"), "data.mix"),
        (("data.mix=[{path: a, source: chat},{path: b}]",), "data.mix.0.source"),
        (("data.mix=[{path: a, weight: 1},{path: b, weight: 2}]", "data.shuffle=false"), "data.shuffle"),
        (("data.mix=[{path: a}]", "data.eval_split=test"), "data.eval_split"),
    ],
)
def test_what_is_no_mix_is_refused(words: tuple[str, ...], key: str) -> None:
    spec = make_spec("model=tiny", "data=text", *ONE, *words)
    found = findings.errors(spec)
    assert key in {error.path for error in found}
    assert json.loads(json.dumps([error.as_dict() for error in found]))


def test_a_key_that_no_part_of_a_mix_has_is_answered_with_those_that_it_has() -> None:
    with pytest.raises(ConfigErrors) as caught:
        make_spec("model=tiny", *ONE, "data.mix=[{path: a, wieght: 1}]")
    (error,) = caught.value.errors
    assert error.where == "data.mix=[{path:a,wieght:1}]"
    assert error.rule == (
        "must be a list, each {path: a, weight: 1}, optionally with source, split, config, revision, column,"
        " template, max_samples, columns"
    )
    assert make_spec("model=tiny", *ONE, *error.way_out).data.weights == (1.0, 1.0)


def test_a_fault_is_named_by_the_set_that_has_it(texts: Path) -> None:
    mix = f"data.mix=[{{path: {texts}/a.txt}},{{path: {texts}/none.txt}}]"
    with pytest.raises(Unusable, match=r"data\.mix\.1\.path=.*none\.txt: no file matches"):
        look(make_spec("model=tiny", "data=text", *ONE, mix).data)
    own = ("data=text", f"data.path={texts}/a.txt", f"data.eval_path={texts}/none.txt")
    with pytest.raises(Unusable, match=r"data\.eval_path=.*none\.txt: no file matches"):
        look(make_spec("model=tiny", *ONE[:3], *own).data)


def test_a_checkout_of_megatron_reads_the_blend_itself(tmp_path: Path) -> None:
    words = ("parallel=tp", "data=tokens", "data.path=null", "backend.path=/megatron", "train.eval_every=10")
    blend = "data.mix=[{path: x, weight: 3},{path: y, weight: 1}]"
    argv = translate(make_spec("model=tiny", *words, blend, "hardware=h100_80g"), python="python").argv
    place = argv.index("--data-path")
    assert argv[place + 1 : place + 5] == ("3", "x", "1", "y")
    own = translate(
        make_spec("model=tiny", *words, blend, "data.eval_path=z", "hardware=h100_80g"), python="python"
    ).argv
    assert own[own.index("--train-data-path") + 1 : own.index("--train-data-path") + 5] == ("3", "x", "1", "y")
    assert own[own.index("--valid-data-path") + 1] == "z"
    assert "--split" not in own


def test_texts_beside_conversations_are_samples_that_are_trained_as_a_whole(texts: Path) -> None:
    rows = "".join(json.dumps({"text": "x" * (n + 3)}) + "\n" for n in range(9))
    (texts / "rows.jsonl").write_text(rows)
    mix = f"data.mix=[{{path: {texts}/a.jsonl}},{{path: {texts}/rows.jsonl, source: text, split: 'train[3:7]'}}]"
    spec = make_spec("model=tiny", "data=chat", *ONE, mix, "train.epochs=1")
    assert findings.errors(spec) == ()
    folder = prepared(spec.data, texts / "cache")
    assert [span.documents.stop - span.documents.start for span in folder.spans] == [80, 4]
    trained_ = np.memmap(folder.path / "trained.bin", dtype=np.uint8, mode="r")
    assert (int(trained_[folder.spans[1].tokens].sum()), spec.steps, steps_of(spec, folder)) == (6 + 7 + 8 + 9, 84, 84)


@pytest.mark.parametrize(
    ("split", "found"),
    [("train", None), ("train[:50%]", (0, 4)), ("train[-2:]", (7, 9)), ("train[5:7]", (5, 7)), ("train[8:2]", (8, 8))],
)
def test_a_slice_is_rounded_as_its_program_rounds_it(split: str, found: tuple[int, int] | None) -> None:
    assert hub.slice_of(split, 9) == found
    assert hub.split_name(split) == "train"


def test_a_slice_is_trained_on_alone_and_counted_before(texts: Path) -> None:
    words = ("data=chat", f"data.path={texts}/a.jsonl", 'data.split="train[10%:35%]"', "data.max_samples=15")
    spec = make_spec("model=tiny", *ONE[:3], *words, "train.epochs=1")
    folder = prepared(spec.data, texts / "cache")
    assert (spec.steps, folder.documents) == (15, 15)
    ids = np.memmap(folder.path / "tokens.bin", dtype=folder.dtype, mode="r")
    assert b"a8" in bytes(ids[:40])


def test_rows_that_a_task_does_not_read_are_not_counted_before_a_rule_refuses_them(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    words = ("model=tiny", "task=sft", "data=rows", f"data.path={tmp_path}/rows.jsonl", "train.epochs=1")
    assert make_spec(*words).data.samples is None


def test_a_run_in_stages_is_told_how_often_it_reads_each_set(texts: Path) -> None:
    mix = f"data.mix=[{{path: {texts}/a.txt}},{{path: {texts}/b.txt}}]"
    stages = f"data.stages=[{{weights: [1, 0]}},{{after_tokens: {8 * 32}, weights: [1, 3]}}]"
    spec = make_spec("model=tiny", *ONE, "data=text", mix, stages, "train.steps=32")
    found = seen(spec)
    assert found.samples is None
    assert found.passes == pytest.approx([(8 + 24 / 4) / 100, 24 * 3 / 4 / 25])
    assert "in stages its sets are read 0.14, 0.72 times" in sentences.data(found)
    assert not seen(make_spec("model=tiny", *ONE, "data=text", mix)).passes
