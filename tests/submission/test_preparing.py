"""The step before a job's ranks, on the first node and on the others. Real processes."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from launcher.base import files
from launcher.base.errors import JobFailed
from launcher.data import token_folder
from launcher.rundir import state
from launcher.spec.parse import to_dict
from launcher.submission import node
from launcher.submission.processes import SlurmPlace
from tests.support.helpers import make_spec


def recorded(run: Path, text: bytes) -> Path:
    """A run of four ranks on two nodes on some text; in place of its ranks a program says whether the ids are there."""
    (run / "logs").mkdir(parents=True)
    (run / "t.txt").write_bytes(text)
    words = ("cluster=slurm", "cluster.nodes=2", "cluster.gpus_per_node=2", "data=text", f"data.path={run}/t.txt")
    (run / "spec.json").write_text(json.dumps(to_dict(make_spec("model=tiny", *words))))
    program = f"import json; print(json.load(open('{run}/tokens.json'))['attempt'])"
    job = {"argv": [sys.executable, "-c", program], "environment": {"LAUNCH_RUN": str(run)}, "working_directory": "/"}
    (run / "job.json").write_text(json.dumps(job))
    return run


def place(number: int) -> SlurmPlace:
    return SlurmPlace(
        job_id="7",
        number=number,
        attempt="7_0",
        told_to_save=threading.Event(),
        told_to_end=threading.Event(),
        requeue=lambda: None,
        seconds_left=lambda: None,
    )


def test_the_first_node_makes_the_ids_and_the_others_begin_once_they_are_there(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", b"once upon a time")
    other = threading.Thread(target=node.run, args=(run,), kwargs={"place": place(1)})
    other.start()
    node.run(run, place=place(0))
    other.join(300)
    assert (files.read_json(run / "state.json") or {})["state"] == "finished"
    out = (run / "logs" / "node.out").read_text()
    assert "launch: token ids: 16 tokens of 1 documents" in out
    assert out.endswith("7_0\n")
    assert (run / "logs" / "node1.out").read_text() == "7_0\n"
    [folder] = [path for path in (run / "cache").iterdir() if path.is_dir()]
    assert (folder / "tokens.bin").read_bytes() == b"once upon a time"


def test_an_error_ends_every_node_with_the_same_words(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", b"\xff\xfe\xff")
    ended: list[str] = []

    def second() -> None:
        with pytest.raises(JobFailed) as caught:
            node.run(run, place=place(1))
        ended.append(str(caught.value))

    other = threading.Thread(target=second)
    other.start()
    with pytest.raises(JobFailed, match=r"t\.txt: it is not UTF-8 text") as caught:
        node.run(run, place=place(0))
    other.join(300)
    assert ended == [str(caught.value)]
    noted = files.read_json(run / "state.json") or {}
    assert (noted["state"], noted["reason"]) == ("failed", ended[0])
    assert not (run / "logs" / "node1.out").exists()


def test_a_node_that_cannot_see_the_ids_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(tmp_path / "a", b"once")
    monkeypatch.setattr(node, "_UNSEEN_S", 0.0)
    content = {"folder": "/only/there", "digest": "0", "data": {}, "attempt": "7_0"}
    files.write_atomically(run / token_folder.POINTER, content)
    node.run(run, place=place(1))
    error = files.read_json(run / "logs" / "error.rank2.json") or {}
    assert "does not see the token ids in /only/there: set cluster.shared_folder or" in error["message"]


def here(run: Path) -> Path:
    """The same on this machine; its program says that it was begun."""
    recorded(run, b"once upon a time")
    job = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps({**job, "argv": [sys.executable, "-c", "print('begun')"]}))
    words = ("cluster=local", "data=text", f"data.path={run}/t.txt")
    (run / "spec.json").write_text(json.dumps(to_dict(make_spec("model=tiny", *words))))
    return run


@pytest.mark.parametrize(
    "ending",
    ["os.kill(os.getpid(), 9)", "pass"],
    ids=["the step is killed", "the step has just ended"],
)
def test_a_request_to_end_while_ids_are_made_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    run = here(tmp_path / "a")

    def step(directory: Path, ranks: dict[str, Any], attempt: str) -> dict[str, Any]:
        return {**ranks, "argv": [sys.executable, "-c", f"import os; open({cancel!r}, 'w').close(); {ending}"]}

    cancel = str(run / state.CANCEL_REQUEST)
    monkeypatch.setattr(node, "preparing_job", step)
    node.run(run)
    ended = files.read_json(run / "state.json") or {}
    assert (ended["state"], ended["reason"]) == ("cancelled", "stopped")
    assert (run / "logs" / "node.out").read_text() == "", "no rank was started"


def test_a_request_that_comes_before_anybody_can_find_the_ranks_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = here(tmp_path / "a")
    job = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps({**job, "argv": [sys.executable, "-c", "import time; time.sleep(600)"]}))

    def late(directory: Path, ranks: dict[str, Any], attempt: str) -> None:
        (run / state.CANCEL_REQUEST).touch()

    monkeypatch.setattr(node, "preparing_job", late)
    node.run(run)
    assert (files.read_json(run / "state.json") or {})["state"] == "cancelled"
