"""What a run is made of is looked at without running anything of the folder that it is in."""

from __future__ import annotations

import subprocess
from pathlib import Path

from launcher.rundir import provenance


def test_git_runs_no_program_that_the_repository_names_to_watch_or_show_its_files(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/it-ran\ncat $1\n")
    program.chmod(0o755)
    (tmp_path / ".gitattributes").write_text("a.txt diff=shown\n")
    (tmp_path / "a.txt").write_text("1\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "x")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)
    for key in ("core.fsmonitor", "diff.shown.textconv"):
        subprocess.run(["git", "config", key, str(program)], cwd=tmp_path, check=True)
    (tmp_path / "a.txt").write_text("2\n")
    found = provenance.git(tmp_path)
    assert found is not None
    assert found["dirty"] is True
    assert not (tmp_path / "it-ran").exists()
