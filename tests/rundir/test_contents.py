"""Damaged records: a row with its reason beside the others, and a refusal with a way out where a run should go on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.base.process import Process
from launcher.rundir import contents, home, signature, state, status
from tests.support.recorded_runs import line, recorded, swept
from tests.support.slurm_runs import Answer, launch

GONE = replace(Process.here(), pid=99999999).as_dict()

GOOD: Mapping[str, Mapping[str, Any]] = {
    "state.json": {"state": "failed", "reason": "x", "time": 1.0, "keeper": GONE, "agent": GONE},
    "submission.json": {"kind": "local", "job_id": "99999999"},
    "attempts.json": {"count": 1, "fruitless": 0, "checkpoint": 0, "allocation": "7_1"},
    "changes.json": {"schema": 1, "changes": [{"step": 1}]},
    "not_submitted.json": {"reason": "x"},
    "memory.json": {"ranks": [{"phases": {"forward": 3}, "static_bytes": 4}], "method": "x"},
    "tokens.json": {"folder": "/x", "digest": "a", "data": {}, "attempt": "1"},
    "logs/error.rank0.json": {"type": "T", "message": "m", "traceback": "t"},
    "logs/outcome.json": {"state": "finished", "step": 2},
}
FILES = (*GOOD, "spec.json", "plan.json", "job.json", "home.json", "metrics.jsonl")
VERBS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("status",): FILES,
    ("logs", "bad"): ("spec.json", "job.json", "metrics.jsonl", *GOOD),
    ("compare", "bad", "good"): ("spec.json", "plan.json", "memory.json", "metrics.jsonl"),
    ("cancel", "bad"): ("state.json", "submission.json"),
}
"""Verbs with the files that they look into."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path / "runs" / "good", steps=[line(1, 2.0)], now="finished")
    run = recorded(tmp_path / "runs" / "bad", "train.steps=4", steps=[line(1, 2.0), line(2, 1.0)])
    home.write(run, run)
    for name, content in GOOD.items():
        (run / name).write_text(json.dumps(content))
    signature.note(run)
    return tmp_path


def _replaced(text: str) -> Callable[[Path], object]:
    """Every value of a file, or of the lists and objects in it, replaced."""

    def values(content: Any) -> Any:
        if isinstance(content, dict) and content:
            return {key: values(each) for key, each in content.items()}
        return json.loads(text)

    def act(path: Path) -> None:
        some = values(json.loads(path.read_text().splitlines()[0])) if path.suffix == ".jsonl" else None
        path.write_text(json.dumps(values(json.loads(path.read_text())) if some is None else some))

    return act


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _pipe(path: Path) -> None:
    """Nobody writes into it, so that reading it never ends."""
    if path.suffix != ".jsonl" and path.parent.name != "logs":
        path.unlink()
        os.mkfifo(path)


DAMAGES: Mapping[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_text(""),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "not JSON": lambda path: path.write_text("<html>"),
    "a list": lambda path: path.write_text("[]"),
    "null": lambda path: path.write_text("null"),
    "without a field": lambda path: path.write_text("{}"),
    "all texts": _replaced('"x"'),
    "all lists": _replaced('["x"]'),
    "all objects": _replaced('{"a": {"b": 1}}'),
    "all null": _replaced("null"),
    "400 digits": _replaced("1" + 400 * "0"),
    "5000 digits": lambda path: path.write_text(f'{{"state": {5000 * "1"}, "step": {5000 * "1"}}}'),
    "no numbers": _replaced("NaN"),
    "infinite": _replaced("1e999"),
    "negative": _replaced("-1"),
    "not UTF-8": lambda path: path.write_bytes(b'\xff\xfe{"a"'),
    "deep": lambda path: path.write_text(100_000 * "["),
    "a folder": _folder,
    "a link to itself": _loop,
    "a pipe": _pipe,
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_of_a_file_takes_a_verb_down_or_hides_another_run(damage: str, folder: Path) -> None:
    for name in FILES:
        path = folder / "runs" / "bad" / name
        whole = path.read_bytes()
        DAMAGES[damage](path)
        for words in (words for words, looked_into in VERBS.items() if name in looked_into):
            answer = launch(*words)
            assert answer.status in (0, 2, 4), (name, words, answer.err)
            assert words[0] != "status" or "good" in answer.out, (name, words)
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(whole)


def _row(name: str = "bad") -> dict[str, Any]:
    rows: list[dict[str, Any]] = launch("status", "--json").json["runs"]
    [found] = [row for row in rows if row["id"] == name]
    return found


HIDDEN = (
    ("state.json", '{"state": "fini', "it is not JSON: Unterminated string starting at: line 1 column 11 (char 10)"),
    ("state.json", "", "it is empty"),
    ("state.json", '{"time": 1}', "it lacks state"),
    ("state.json", '{"state": "done"}', 'state="done" must be one of prepared, queued, running, requeued, finished'),
    ("state.json", '{"state": "running", "keeper": "me"}', 'keeper="me" must be a process {...}'),
    ("submission.json", "[1, 2]", "it holds [1, 2] and must hold an object {...}"),
    ("submission.json", '{"kind": "cloud"}', 'kind="cloud" must be local or slurm'),
)
"""A file, its text and what is wrong with it, where it would have told the state of the run."""


@pytest.mark.parametrize(("name", "text", "finding"), HIDDEN)
def test_a_run_whose_state_nobody_can_tell_says_why_and_neither_goes_on_nor_is_stopped(
    name: str, text: str, finding: str, folder: Path
) -> None:
    run = folder / "runs" / "bad"
    (run / name).write_text(text)
    row = _row()
    assert row["state"] == "unreadable"
    way = f"once no process of the run is left, `rm -r {run / name}`, and then `launch resume {run}`"
    assert row["reason"].startswith(f"{name}: {finding}")
    assert row["reason"].endswith(f"; {way}")
    for words in (("resume", "bad"), ("resume", "bad", "train.steps=9")):
        answer = launch(*words)
        assert (answer.status, answer.err.startswith(f"launch: bad cannot continue: {name}: {finding}")) == (4, True)
    answer = launch("cancel", "bad", "good")
    assert answer.status == 4
    assert answer.err.splitlines()[0] == "launch: good is not running"
    assert answer.err.splitlines()[1].startswith(f"launch: bad cannot be stopped: {name}: {finding}")
    assert launch("logs", "bad").out.startswith(f"bad is unreadable: {name}: {finding}")


@pytest.mark.parametrize("key", ["train", "data"])
def test_a_run_whose_specification_or_job_is_damaged_keeps_its_state_and_says_so(folder: Path, key: str) -> None:
    run = folder / "runs" / "bad"
    (run / "spec.json").write_text(json.dumps({key: 3}))
    way = f"restore it from a copy, or `launch run --from {run} save.load={run}` starts a new run like it"
    row = _row()
    assert (row["state"], row["reason"]) == ("failed", f"x; spec.json: {key}=3 must be an object {{...}}; {way}")
    said = f"launch: {run}/spec.json: {key}=3 must be an object {{...}}; {way}\n"
    for words in (("resume", "bad"), ("resume", "bad", "train.steps=9"), ("recipe", "diff", "bad", "good")):
        answer: Answer = launch(*words)
        assert (answer.status, answer.err) == (4, said), words
    assert launch("compare", "bad", "good").err == (
        f"launch: bad is incomplete: spec.json: {key}=3 must be an object {{...}}; {way}\n"
    )
    (run / "spec.json").unlink()
    assert launch("status", "bad").status == 2, "without it a folder is no run"


def test_a_sweep_whose_list_of_points_is_damaged_is_said_beside_the_other_runs(folder: Path) -> None:
    sweep = swept(folder / "runs" / "s", {"1e-3": 2.0, "1e-4": 3.0})
    whole = {**json.loads((sweep / state.SWEEP).read_text()), "overrides": ["model=tiny", "train.seed=1,2"]}
    for text, finding in (
        ('{"points": [', "it is not JSON: Expecting value: line 1 column 13 (char 12)"),
        (json.dumps({**whole, "points": [{"id": "../x"}]}), "point '../x' is not in the form that a sweep writes"),
        (
            json.dumps({**whole, "points": [{**whole["points"][0], "largest_pile": 3}]}),
            "point '000' is not in the form that a sweep",
        ),
        (
            json.dumps({**whole, "points": [{**whole["points"][0], "predicted_tokens_per_second_per_gpu": "many"}]}),
            "point '000' is not in the form that a sweep",
        ),
    ):
        (sweep / state.SWEEP).write_text(text)
        for verb in ("status", "resume") if "points" in finding else ("status",):
            answer = launch(verb, "s")
            assert (answer.status, f"{sweep / state.SWEEP}: {finding}" in answer.err) == (4, True), answer
            assert f"its runs can be resumed one by one: `launch resume {sweep}/000`" in answer.err
        assert launch("status", "s/001").status == 0
        assert {row["id"] for row in launch("status", "--json").json["runs"]} >= {"good", "s/000", "s/001"}


def test_keys_that_nobody_reads_are_left_alone_and_another_schema_is_refused_with_its_version(folder: Path) -> None:
    run = folder / "runs" / "bad"
    (run / "state.json").write_text('{"state": "cancelled", "reason": null, "more": {"than": ["this"]}}')
    assert status.read(run).state == "cancelled"
    assert contents.read(run, "nothing.json") is None
    (run / "changes.json").write_text('{"schema": 2, "changes": []}')
    with pytest.raises(contents.BadRecord, match=r"it has schema 2, and this version reads schema 1; restore it"):
        contents.read(run, "changes.json")
