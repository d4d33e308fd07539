"""The state of the repository in a lock: names and a hash; none of the repository's programs is started."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from launcher.cli import main
from launcher.commands import run
from launcher.rundir import lock, provenance
from launcher.rundir.repository import state as git_state

LINE = "learning_rate = 0.25"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two files, of which one has changed since its commit."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "a file.py").write_text("print(1)\n")
    (folder / "b.py").write_text("print(2)\n")
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / "a file.py").write_text(f"{LINE}\n")
    git_state.cache_clear()
    return folder


def _lock(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["recipe", "lock", "model=tiny", *words]) == 0
    return capsys.readouterr().out


def test_a_lock_holds_names_and_a_hash_of_changed_files_and_their_content_only_where_asked(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = _lock(capsys)
    state = yaml.safe_load(text)["versions"]["git"]
    assert LINE not in text
    assert (state["dirty"], state["changed"], state["diff"]) == (True, ["a file.py"], None)
    whole = yaml.safe_load(_lock(capsys, "run.record_diff=true"))["versions"]["git"]
    assert LINE in whole["diff"]
    assert state["diff_sha256"] == whole["diff_sha256"] == hashlib.sha256(whole["diff"].encode()).hexdigest()


def test_a_run_that_is_started_keeps_the_difference_where_it_was_asked_to(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "start", lambda *_, **__: 0)
    assert main(["model=tiny", "hardware=cpu", "run.name=a", "run.record_diff=true"]) == 0
    assert LINE in yaml.safe_load((repository / "runs" / "a" / "run.lock.yaml").read_text())["versions"]["git"]["diff"]


def test_an_installed_package_that_is_named_like_a_secret_is_none(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "installed", lambda: {"detect-secrets": "1.5.0rc1dev20261122"})
    assert "detect-secrets==1.5.0rc1dev20261122" in _lock(capsys)


def test_locks_with_and_without_the_difference_are_compared_by_its_hash(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = yaml.safe_load(_lock(capsys))
    path = repository / "with.yaml"
    path.write_text(_lock(capsys, "run.record_diff=true"))
    found = lock.read(path)
    assert LINE in found.content["versions"]["git"]["diff"]
    assert lock.differences(lock.ingredients(found.content), lock.ingredients(new)) == []
    (repository / "b.py").write_text("print(3)\n")
    git_state.cache_clear()
    other = yaml.safe_load(_lock(capsys))
    assert other["versions"]["git"]["changed"] == ["a file.py", "b.py"]
    differing = lock.differences(lock.ingredients(found.content), lock.ingredients(other))
    assert [path for path, _, _ in differing] == ["versions.git.diff_sha256"]


def test_a_difference_that_holds_a_secret_is_not_recorded(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = "hf_" + "aB3dE6gH9j" * 4
    (repository / "b.py").write_text(f"login('{token}')\n")
    git_state.cache_clear()
    assert main(["recipe", "lock", "model=tiny", "run.record_diff=true"]) == 2
    said = capsys.readouterr()
    assert token not in said.out + said.err
    words = " ".join(said.err.split())
    assert "run.record_diff=true: the diff of tracked files contains a Hugging Face token" in words
    assert "try run.record_diff=false" in words
    assert token not in _lock(capsys)


def test_a_repository_whose_settings_name_programs_is_asked_and_none_is_started(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *words], cwd=tmp_path, check=True)

    git("init", "--quiet")
    (tmp_path / "text").write_text("before\n")
    (tmp_path / ".gitattributes").write_text("text diff=theirs filter=theirs\n")
    git("add", "--all")
    git("commit", "--quiet", "--message=a")
    program = tmp_path / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\ncat $1\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "diff.external", "diff.theirs.textconv", "diff.theirs.command", "core.pager",
                "filter.theirs.clean", "filter.theirs.process", "filter.theirs.smudge", "core.sshCommand"):  # fmt: skip
        git("config", key, str(program))
    git("config", "filter.theirs.required", "true")
    for hook in ("post-index-change", "fsmonitor-watchman", "pre-auto-gc", "reference-transaction"):
        (tmp_path / ".git" / "hooks" / hook).symlink_to(program)
    (tmp_path / "text").write_text("after\n")
    found = git_state(tmp_path)
    assert found is not None
    assert (found["dirty"], "+after" in found["diff"]) == (True, True)
    git("config", "filter.a=b.clean", str(program))
    (tmp_path / ".gitattributes").write_text("text filter=a=b\n")
    git_state.cache_clear()
    assert git_state(tmp_path) is None
    assert not (tmp_path / "started").exists()


def test_the_difference_is_that_of_git_whatever_has_changed(repository: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "protocol.file.allow=always")
        done = subprocess.run(["git", *who, *words], cwd=repository, check=True, capture_output=True, text=True)
        return done.stdout

    for name in ("gone", "link", "mode", "moved", "staged", "zähl\tung", "binary"):
        (repository / name).write_text(f"{name}\n" * 9)
    (repository / "folder").mkdir()
    (repository / "folder" / "replaced").touch()
    git("add", ".")
    git("commit", "-q", "-m", "second")
    git_state.cache_clear()
    assert git_state(repository) == {
        "commit": git("rev-parse", "HEAD").strip(),
        "dirty": False,
        "changed": [],
        "diff_sha256": None,
        "diff": None,
    }
    (repository / "gone").unlink()
    (repository / "link").unlink()
    (repository / "link").symlink_to("/nowhere")
    (repository / "mode").chmod(0o755)
    git("mv", "moved", "there")
    (repository / "staged").write_text("staged\n")
    git("add", "staged")
    (repository / "zähl\tung").write_text("other\n")
    (repository / "binary").write_bytes(bytes(range(256)))
    shutil.rmtree(repository / "folder")
    os.mkfifo(repository / "folder")
    (repository / "new, which git does not know").touch()
    git("config", "diff.noprefix", "true")
    os.utime(repository / "b.py")  # As it was, at another time.
    index = (repository / ".git" / "index").read_bytes()
    git_state.cache_clear()
    found = git_state(repository / ".git" / "..")
    assert found is not None
    assert (repository / ".git" / "index").read_bytes() == index
    git("config", "--unset", "diff.noprefix")
    assert found["diff"] == git("diff", "HEAD", "--no-color")
    names = ["binary", "folder/replaced", "gone", "link", "mode", "moved", "staged", "there", "zähl\tung"]
    assert found["changed"] == names


def test_a_clone_of_parts_fetches_nothing_where_its_state_is_asked(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", *words], cwd=tmp_path, check=True)

    git("init", "--quiet")
    (tmp_path / "text").write_text("before\n")
    git("add", "text")
    git("commit", "--quiet", "--message=a")
    program = tmp_path / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    for key, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": str(tmp_path),
        "remote.origin.uploadpack": str(program),
    }.items():
        git("config", key, value)
    name = subprocess.run(["git", "rev-parse", "HEAD:text"], cwd=tmp_path, capture_output=True, text=True, check=True)
    blob = name.stdout.strip()
    (tmp_path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    (tmp_path / "text").write_text("after\n")
    found = git_state(tmp_path)
    assert found is not None
    assert found["dirty"]
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("when", ["no commit yet", "sparse", "a module that has moved on"])
def test_a_repository_of_another_shape_is_told_of_as_it_is(repository: Path, when: str) -> None:
    def git(*words: str, at: Path = repository) -> None:
        who = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "protocol.file.allow=always")
        subprocess.run(["git", *who, *words], cwd=at, check=True, capture_output=True)

    git("add", ".")
    git("commit", "-q", "-m", "second")
    place, expected = repository, list[str]()
    if when == "no commit yet":
        place = repository / "another"
        place.mkdir()
        git("init", "-q", at=place)
    elif when == "sparse":
        git("update-index", "--skip-worktree", "b.py")
        (repository / "b.py").unlink()
    else:
        git("clone", "-q", str(repository), "module")
        git("add", "module")
        git("commit", "-q", "-m", "third")
        git("commit", "-q", "--allow-empty", "-m", "on", at=repository / "module")
        expected = ["module"]
    git_state.cache_clear()
    found = git_state(place)
    assert found is not None
    assert found["changed"] == expected
    assert (found["commit"] == "(initial)") == (when == "no commit yet")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (build@host)\n",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Wed Mar 20 14:00:00 UTC 2026\n",
    ],
)
def test_the_drivers_version_is_read_of_both_kinds_of_its_kernel_module(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version").write_text(line)
    monkeypatch.setattr(provenance, "_NVIDIA", tmp_path / "version")
    assert provenance.software()["driver"] == "580.159.04"
