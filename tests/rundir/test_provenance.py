"""What a run was made of; the repository that it lies in is asked, and none of its programs is started."""

from __future__ import annotations

import subprocess
from pathlib import Path

from launcher.rundir import provenance


def test_a_repository_whose_settings_name_programs_is_asked_and_none_is_started(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *words], cwd=tmp_path, check=True)

    git("init", "--quiet")
    (tmp_path / "text").write_text("before\n")
    (tmp_path / ".gitattributes").write_text("text diff=theirs\n")
    git("add", "--all")
    git("commit", "--quiet", "--message=a")
    program = tmp_path / "program.sh"
    program.write_text("#!/bin/sh\ntouch started\ncat $1\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "diff.external", "diff.theirs.textconv"):
        git("config", key, "./program.sh")
    (tmp_path / "text").write_text("after\n")
    found = provenance.git(tmp_path)
    assert found is not None
    assert found["dirty"]
    assert not (tmp_path / "started").exists()
