"""Submitit's controller on this machine, and what the job is handed after it."""

from __future__ import annotations

import os
import shlex
import subprocess

import pytest

from launcher.submission.submit import controller_python, safe_path_for_controller

SHOWS = "import os, sys; print(sys.flags.safe_path, os.environ.get('PYTHONSAFEPATH'))"


@pytest.mark.parametrize(("own", "job"), [(None, "True None"), ("", "True None"), ("yes", "True yes")])
def test_the_controller_and_the_task_are_safe_and_the_job_has_the_variable_that_the_user_has(
    own: str | None, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    if own is not None:
        monkeypatch.setenv("PYTHONSAFEPATH", own)
    command = shlex.split(controller_python())
    with safe_path_for_controller():
        assert os.environ["PYTHONSAFEPATH"], "an empty variable is none"
        done = subprocess.run([*command, "-S", "-c", SHOWS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == job
    assert os.environ.get("PYTHONSAFEPATH") == own
