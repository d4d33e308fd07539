"""``launch why``: memory that ran out, from first sentence to last way out, and runs that have not ended badly."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from launcher.job import events
from launcher.job.memory import OutOfMemory
from launcher.rundir import failure, state
from launcher.views.why import as_line, as_text
from launcher.why.answer import Answer
from launcher.why.explain import explain
from tests.support.ended_runs import GIB, GPUS, failed, without_memory, write_error, write_records
from tests.support.helpers import assert_golden
from tests.support.recorded_runs import line, recorded

OOM: dict[str, Any] = {"kind": "device", "place": "device", "time": 0.0, "rank": 3, "node": None, "message": ""}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def why(run: Path) -> Answer:
    return explain(run, run.parent.parent)


def test_a_longer_batch_is_told_in_ten_lines_with_what_would_fit(folder: Path) -> None:
    run = without_memory(folder / "runs" / "big", grown={"activations": 38 * GIB}, tokens=6144)
    write_records(run, [GIB])
    write_error(run, "OutOfMemoryError: CUDA out of memory.", kind="OutOfMemoryError", rank=3)
    found = why(run)
    assert (found.cause, found.pile) == ("out_of_memory", "activations")
    assert (found.where.rank, found.where.layer, found.where.phase, found.where.step) == (3, 17, "backward", 412)
    assert found.said[0].startswith("backward of layer 17 on rank 3 (gpu07) in step 412 asked for 1.00 GiB")
    assert found.said[2] == "the micro-batch had 6,144 tokens, and the check assumed 4,096"
    assert [each.file for each in found.evidence] == ["oom.json", "memory.jsonl", "logs/error.rank3.json", "plan.json"]
    assert all(way.peak_bytes is not None and way.peak_bytes < 80 * GIB for way in found.ways)
    assert_golden("why_out_of_memory.txt", f"{as_text(found, 100)}\n")


def test_the_ways_out_are_stricter_the_more_was_measured(folder: Path) -> None:
    """Sequences half as long do not do where the activations were more than twice what a rank has."""
    some = why(without_memory(folder / "runs" / "a", grown={"activations": 38 * GIB}))
    more = why(without_memory(folder / "runs" / "b", grown={"activations": 200 * GIB}))
    assert ("train.sequence_length=2048",) in {way.overrides for way in some.ways}
    assert ("train.sequence_length=512",) in {way.overrides for way in more.ways}


def test_only_words_that_a_resumed_run_takes_are_given(folder: Path) -> None:
    run = without_memory(folder / "runs" / "a", grown={"activations": 38 * GIB})
    taken = explain(run, folder, lambda words: words[0].startswith("checkpointing"))
    assert {way.overrides[0].partition(".")[0] for way in taken.ways} == {"checkpointing"}
    [untaken] = [each for each in taken.said if "cannot be resumed with" in each]
    assert untaken.startswith("a new run would also fit with `")
    assert all(f"`{' '.join(way.overrides)}`" not in untaken for way in taken.ways)
    assert untaken.endswith("; this one cannot be resumed with these")
    assert all(way.command == f"launch resume a {shlex.join(way.overrides)}" for way in taken.ways)


def test_a_leak_has_no_layout_that_ends_it(folder: Path) -> None:
    run = without_memory(folder / "runs" / "a", grown={"temporary": 40 * GIB})
    write_records(run, [10 * GIB, 16 * GIB, 22 * GIB, 28 * GIB, 34 * GIB, 40 * GIB])
    found = why(run)
    assert found.pile == "temporary"
    assert "a leak or a cache, which no layout fixes" in found.said[1]
    assert [way.overrides for way in found.ways] == [()]
    assert found.ways[0].text.startswith("it continues from the start, and lasts until the device is full again")


def test_a_run_that_was_not_to_fit_has_its_ways_out_though_something_grows_a_little(folder: Path) -> None:
    run = without_memory(folder / "runs" / "a", *GPUS, "hardware.memory_bytes=40000000000")
    write_records(run, [GIB + number * GIB // 8 for number in range(8)])
    found = why(run)
    assert found.said[1].startswith("as predicted: the backward phase takes 40.05 GiB, and a rank has 37.25 GiB")
    assert all(way.overrides for way in found.ways)


def test_growth_below_what_agrees_with_the_prediction_explains_no_end(folder: Path) -> None:
    run = without_memory(folder / "runs" / "a")
    write_records(run, [GIB + number * GIB // 16 for number in range(8)])
    assert why(run).said[1].startswith("prediction and measurement agree")


def test_other_processes_are_named_and_asked_away_before_the_run_is_changed(folder: Path) -> None:
    other = {"pid": 123, "name": "python eval.py", "bytes": 40 * GIB}
    run = without_memory(folder / "runs" / "a", others_bytes=40 * GIB, others=(other,))
    found = why(run)
    assert found.pile == "other_processes"
    assert found.said[1].startswith("other processes had 40.00 GiB of the device (pid 123 python eval.py 40.00 GiB)")
    assert (found.ways[0].command, found.ways[0].overrides) == ("launch resume a", ())
    assert all(way.peak_bytes and way.peak_bytes > 40 * GIB for way in found.ways[1:]), "with what the others have"


def test_fragmentation_is_told_with_both_figures_and_ended_by_expandable_segments(folder: Path) -> None:
    found = why(without_memory(folder / "runs" / "a", reserved_bytes=77 * GIB))
    assert found.pile == "fragmentation"
    assert found.said[1].startswith("the caching allocator had reserved 77.00 GiB, of which the run used 43.")
    assert found.ways[0].overrides == ("train.allocator=expandable",)


def test_a_forced_run_ends_as_predicted(folder: Path) -> None:
    run = without_memory(folder / "runs" / "a", *GPUS, "hardware.memory_bytes=30000000000")
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**plan, "forced": True}))
    found = why(run)
    assert found.said[1].startswith("as predicted: the backward phase takes")
    assert "and it was started with --force; the request was for" in found.said[1]
    assert found.ways


def test_where_all_agrees_the_band_says_whether_the_estimate_was_tight(folder: Path) -> None:
    found = why(without_memory(folder / "runs" / "a"))
    assert found.said[1].startswith("prediction and measurement agree: the backward phase takes")
    assert "below the capacity: the estimate is too low for this run" in found.said[2]
    tight = why(without_memory(folder / "runs" / "b", *GPUS, "hardware.memory_bytes=48000000000"))
    assert "the run was tight, and the estimate is too low" in tight.said[2]


def test_a_run_without_oom_json_tells_by_the_words_of_torch(folder: Path) -> None:
    run = failed(folder / "runs" / "a", *GPUS, reason="rank 3: out of GPU memory: tried to allocate 2.00 GiB")
    message = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of "
        "which 900.00 MiB is free. Process 77 has 20.00 GiB memory in use. Including non-PyTorch memory, this process "
        "has 58.00 GiB memory in use. Of the allocated memory 55.00 GiB is allocated by PyTorch, and 2.00 GiB is "
        "reserved by PyTorch but unallocated."
    )
    trace = '  File "/x/engine.py", line 3, in train_step\n  File "/x/torch/_tensor.py", line 9, in backward\n'
    write_error(run, message, kind="OutOfMemoryError", rank=3, traceback=trace)
    found = why(run)
    assert found.said[0] == (
        "backward on rank 3 (gpu07) asked for 2.00 GiB with 0.88 GiB free of 79.11 GiB on the device"
    )
    assert (found.cause, found.pile) == ("out_of_memory", "other_processes")
    assert found.ways


def test_an_oom_of_an_earlier_attempt_is_not_that_of_the_last(folder: Path) -> None:
    run = without_memory(folder / "runs" / "a", grown={"activations": 38 * GIB}, time=1.0)
    write_error(run, "ValueError: no", kind="ValueError")
    events.add(run, "start", "the ranks are started", step=None)
    state.put(run, "failed", reason="rank 0: ValueError: no", cause="error")
    assert why(run).cause == "error"


def test_earlier_attempts_are_told_with_how_they_ended(folder: Path) -> None:
    run = without_memory(folder / "runs" / "a", grown={"activations": 38 * GIB})
    events.add(run, "start", "the ranks are started", step=None)
    state.put(run, "failed", reason="rank 3: out of memory; `launch why RUN` says which pile grew")
    assert why(run).earlier == ()
    events.add(run, "start", "the ranks are started", step=3)
    state.put(run, "requeued", reason="preempted after step 7", cause="preempted")
    [first] = why(run).earlier
    assert first.startswith("attempt 1: failed after ")
    assert first.endswith(" s: rank 3: out of memory; `launch why RUN` says which pile grew")
    events.add(run, "start", "the ranks are started", step=7)
    state.put(run, "finished")
    found = why(run)
    assert [each.partition(" after")[0] for each in found.earlier] == ["attempt 1: failed", "attempt 2: requeued"]
    assert found.said == ("nothing went wrong: it finished",)


def test_a_run_whose_record_cannot_be_read_still_says_who_asked(folder: Path) -> None:
    run = without_memory(folder / "runs" / "a", grown={"activations": 38 * GIB})
    spec = json.loads((run / "spec.json").read_text())
    (run / "spec.json").write_text(json.dumps({**spec, "model": {"family": "of tomorrow"}}))
    found = why(run)
    assert found.said[0].startswith("backward of layer 17 on rank 3")
    assert found.pile == "activations"
    assert {row.predicted_bytes for row in found.piles} == {None}
    assert found.said[1].endswith("this version cannot read its recorded settings, spec.json")
    assert [way.command for way in found.ways] == ["launch logs a"]


@pytest.mark.parametrize(("size", "smaller"), [(1, []), (2, ["launch resume a train.micro_batch_size=1"])])
def test_a_run_that_breaks_a_rule_of_today_names_it_and_offers_only_what_resume_takes(
    folder: Path, size: int, smaller: list[str]
) -> None:
    run = without_memory(folder / "runs" / "a", *GPUS, f"train.micro_batch_size={size}")
    spec = json.loads((run / "spec.json").read_text())
    spec["parallel"]["tensor"] = 3
    (run / "spec.json").write_text(json.dumps(spec))
    found = why(run)
    assert "its settings break a rule of this version: parallel.tensor=3: " in found.said[1]
    assert [way.command for way in found.ways] == [*smaller, "launch logs a"]
    assert [way.command for way in explain(run, folder, lambda words: False).ways] == ["launch logs a"]


def test_a_request_is_told_in_bytes_where_it_was_hardly_more_than_what_was_free(folder: Path) -> None:
    found = why(without_memory(folder / "runs" / "a", requested_bytes=352_256, free_bytes=338_332))
    assert "asked for 352,256 bytes with 338,332 free of 78.75 GiB" in found.said[0]
    assert failure.out_of_memory_line(OutOfMemory(**OOM, requested_bytes=352_256, free_bytes=338_332)) == (
        "rank 3: out of memory: asked for 352,256 bytes with 338,332 free; `launch why RUN` says which pile grew"
    )
    assert "asked for 2.00 GiB with 1.00 GiB free;" in failure.out_of_memory_line(
        OutOfMemory(**OOM, requested_bytes=2 * GIB, free_bytes=GIB)
    )


SCRIPT = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 31, in main
[rank1]:     loss.backward()
[rank1]:   File "/venv/lib/python3.12/site-packages/torch/_tensor.py", line 7, in backward
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 1 has a total capacity of 78.75 \
GiB of which 500.00 MiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory in use. Of the \
allocated memory 70.00 GiB is allocated by PyTorch, and 7.00 GiB is reserved by PyTorch but unallocated.
[rank1]:[W1123 08:08:20.123456789 ProcessGroupNCCL.cpp:1524] Warning: destroy_process_group() was not called
"""
REPORT = "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 9)\n"


@pytest.mark.parametrize("cause", ["out_of_memory", "error", None])
def test_a_gpu_that_a_script_filled_is_told_by_the_words_of_torch_in_its_log(folder: Path, cause: str | None) -> None:
    run = failed(folder / "runs" / "a", *GPUS, reason="")
    log = run / "logs" / "ranks" / "1_x" / "attempt_0" / "1"
    log.mkdir(parents=True)
    (log / "stderr.log").write_text(SCRIPT)
    (run / "logs" / "node.err").write_text(REPORT)
    told = failure.explain(run, 1)
    assert (told.kind, told.rank, told.transient) == ("out_of_memory", 1, False)
    state.put(run, "failed", reason=told.text, cause=cause)
    found = why(run)
    assert (found.cause, found.where.rank, found.where.phase) == ("out_of_memory", 1, "backward")
    assert found.said[0] == "backward on rank 1 asked for 1.00 GiB with 0.49 GiB free of 78.75 GiB on the device"
    assert [(each.file, each.line) for each in found.evidence][:2] == [
        ("/home/me/train.py", 31),
        ("logs/ranks/1_x/attempt_0/1/stderr.log", 5),
    ]


def test_a_script_without_its_log_tells_by_the_reason_of_its_state(folder: Path) -> None:
    reason = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 2.0"
    found = why(failed(folder / "runs" / "a", *GPUS, reason=f"{reason} ... (train.py:2 in main) (exit status 1; /x)"))
    assert found.cause == "out_of_memory"
    assert found.said[0] == "it asked for 1.00 GiB on the device"


@pytest.mark.parametrize(
    ("now", "reason", "said"),
    [
        ("finished", None, "nothing went wrong: it finished after 2 steps"),
        ("cancelled", "stopped", "the user stopped it, and nothing went wrong: stopped"),
        (None, None, "nothing went wrong: it is prepared"),
    ],
)
def test_where_nothing_went_wrong_that_is_said(
    folder: Path, now: state.State | None, reason: str | None, said: str
) -> None:
    found = why(recorded(folder / "runs" / "a", steps=[line(1, 5.0), line(2, 4.0)], now=now, reason=reason))
    assert (found.cause, found.said[0]) == ("none", said)
    assert as_line(found) == f"a: none: {said}"


def test_a_run_that_trains_says_what_is_noteworthy(folder: Path) -> None:
    run = recorded(folder / "runs" / "a", steps=[line(4, 5.0)], now="running")
    events.add(run, "straggler", "rank 1 is 30% slower than the median", step=4, rank=1)
    growth = {"time": 1.0, "kind": "memory_growth", "step": 4, "text": "the temporary pile grows", "pile": "temporary"}
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps(growth) + "\n")
    found = why(run)
    assert (found.cause, found.pile) == ("none", "temporary")
    assert found.said == (
        "nothing has gone wrong: it is running in step 4 of 100",
        "rank 1 is 30% slower than the median",
        "the temporary pile grows",
    )
    assert [(each.file, each.line) for each in found.evidence] == [("events.jsonl", 2), ("events.jsonl", 3)]


def test_a_submission_that_failed_is_told_with_what_the_cluster_said(folder: Path) -> None:
    run = recorded(folder / "runs" / "a")
    (run / "not_submitted.json").write_text(json.dumps({"reason": "sbatch: invalid partition"}))
    found = why(run)
    assert found.cause == "error"
    assert "its submission failed: sbatch: invalid partition" in found.said[0]
    assert found.evidence[0].file == "not_submitted.json"


@pytest.mark.parametrize("name", ["oom.json", "memory.jsonl", "state.json", "plan.json", "spec.json", "events.jsonl"])
@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"schema": 1}', "\x00\xff", '{"state": 3, "time": "no", "rank": []}']
)
def test_no_damaged_file_ends_the_answer(folder: Path, name: str, content: str) -> None:
    run = without_memory(folder / "runs" / "a", grown={"activations": 38 * GIB})
    write_records(run, [GIB, 2 * GIB, 3 * GIB])
    (run / name).write_text(content)
    assert as_text(why(run))


def test_every_document_has_the_keys_of_the_contract(folder: Path) -> None:
    found = why(without_memory(folder / "runs" / "a", grown={"activations": 38 * GIB})).as_dict()
    assert {"cause", "where", "pile", "piles", "evidence", "fixes"} <= set(found)
    assert set(found["where"]) == {"rank", "phase", "step", "layer", "node"}
    assert set(found["piles"][0]) == {"pile", "predicted_bytes", "measured_bytes"}
    assert set(found["evidence"][0]) == {"file", "line", "text"}
    assert json.loads(json.dumps(found)) == found
