"""A process is known for good: not by its pid alone. Real processes, and real namespaces where they may be made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.process import Process, children, marked, speaks_of


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"], start_new_session=True, env={"LAUNCH_RUN": "/there/is/a run"}) as process:
        while not Path(f"/proc/{process.pid}/environ").read_bytes():
            time.sleep(0.001)  # The kernel shows it a moment after the program has begun.
        yield process
        process.kill()


def test_a_process_is_found_again_from_its_record(sleeper: subprocess.Popen[bytes]) -> None:
    record = json.loads(json.dumps(Process.of(sleeper.pid).as_dict()))
    found = Process.recorded(record)
    assert found is not None
    assert found.alive
    assert found in children(os.getpid())
    assert found in marked("LAUNCH_RUN=/there/is/a run")
    assert found.send(signal.SIGTERM, group=True)
    assert sleeper.wait(300) == -signal.SIGTERM
    assert not found.send(signal.SIGTERM)


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("other", [{"start": 7}, {"boot": "another"}, {"namespace": "pid:[1]"}])
def test_a_stranger_with_the_same_pid_gets_no_signal(
    sleeper: subprocess.Popen[bytes], other: dict[str, object], group: bool
) -> None:
    stranger = replace(Process.of(sleeper.pid), **other)  # type: ignore[arg-type]
    assert not stranger.alive
    assert not stranger.send(signal.SIGKILL, group=group)
    assert sleeper.poll() is None


@pytest.mark.parametrize("record", [None, 7, "7", {}, {"pid": 7}, {**Process.here().as_dict(), "start": "7"}])
def test_what_is_no_record_of_a_process_is_none(record: object) -> None:
    assert Process.recorded(record) is None


def test_a_zombie_does_not_count_as_alive() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not Process.of(process.pid).alive


def test_a_bare_pid_is_of_a_run_whose_folder_its_process_names(sleeper: subprocess.Popen[bytes]) -> None:
    assert speaks_of(sleeper.pid, Path("/there/is/a run"))
    assert not speaks_of(sleeper.pid, Path("/there/is/a"))
    assert not speaks_of(os.getpid(), Path("/there/is/a run"))


def test_another_namespace_is_told_from_this_one_and_a_reboot_from_another_host() -> None:
    spaces = ["unshare", "--pid", "--fork", "--mount-proc", "--uts"]
    if subprocess.run([*spaces, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces cannot be made here: that takes root")
    program = "import json, os; from launcher.base.process import Process; print(json.dumps(Process.here().as_dict()))"
    shell = f"hostname elsewhere && exec {sys.executable} -c '{program}'"
    done = subprocess.run([*spaces, "sh", "-c", shell], capture_output=True, text=True, check=True)
    inside = Process.recorded(json.loads(done.stdout))
    assert inside is not None
    assert (inside.pid, inside.host, inside.visible, inside.alive) == (1, "elsewhere", False, False)
    assert not inside.before_a_reboot, "the kernel is the same"
    assert replace(Process.here(), boot="another").before_a_reboot
    assert not replace(inside, boot="another").before_a_reboot
