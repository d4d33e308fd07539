"""Which files tell what a run printed, and how a file that grows is read."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.base import files
from launcher.base.files import Tail
from launcher.rundir import output
from tests.support.recorded_runs import recorded


def test_a_file_is_followed_over_its_rotation_and_its_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    tail = Tail(path, from_start=False)
    with path.open("a") as file:
        file.write("a\nhalf")
    assert (tail.lines(), tail.restarted) == (["a"], False)
    with path.open("a") as file:
        file.write(" whole\n")
    assert (tail.lines(), tail.restarted) == (["half whole"], False)
    path.rename(tmp_path / "log.1")
    assert tail.lines() == [], "there is none for a moment"
    path.write_text("of the new file, which is longer than the old one was\n")
    assert (tail.lines(), tail.restarted) == (["of the new file, which is longer than the old one was"], True)
    os.truncate(path, 0)
    assert (tail.lines(), tail.restarted) == ([], True)
    path.write_text("end")
    assert tail.lines() == []
    assert tail.lines(ended=True) == ["end"]


def test_the_newest_attempt_of_all_nodes_is_told_from_those_before(tmp_path: Path) -> None:
    for place, attempt in enumerate(("7_0_abcdefgh", "7_0_defghijk", "7_1_a_cdefgh", "7_1_defghij_")):
        folder = tmp_path / "logs" / "ranks" / attempt / "attempt_0" / "0"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text("words\n")
        os.utime(tmp_path / "logs" / "ranks" / attempt, (place, place))
    (tmp_path / "logs" / "ranks" / "rank0").symlink_to("7_1_a_cdefgh/attempt_0/0")
    (tmp_path / "logs" / "node.err").write_text("torchrun\n")
    found = output.outputs(tmp_path)
    assert {path.parts[-4] for path in found.ranks} == {"7_1_a_cdefgh", "7_1_defghij_"}
    assert {path.parts[-4] for path in found.earlier} == {"7_0_abcdefgh", "7_0_defghijk"}
    assert [path.name for path in found.around] == ["node.err"]
    assert output.count(found.every) == 5


def test_what_an_array_says_of_its_task_belongs_to_the_point_of_the_sweep(tmp_path: Path) -> None:
    run = recorded(tmp_path / "s" / "000", job="7_0")
    array = tmp_path / "s" / "submitit" / "0"
    array.mkdir(parents=True)
    for task in (0, 1):
        (array / f"7_{task}_0_log.err").write_text("module: command not found\n")
    files.write_atomically(run / "submission.json", {"kind": "slurm", "job_id": "7_0", "comment": str(array)})
    assert output.outputs(run).around == (array / "7_0_0_log.err",)
