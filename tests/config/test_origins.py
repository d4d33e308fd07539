"""The addresses of a repository are read without git, which would run what the repository's configuration names."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config.trust.sources import remotes


def repository(folder: Path, configuration: str) -> Path:
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text(configuration)
    return folder


@pytest.mark.parametrize(
    ("configuration", "found"),
    [
        ('[core]\n\turl = no\n[remote "origin"]\n\turl = git@host:a/b.git\n\tfetch = x\n', ("git@host:a/b.git",)),
        ('[remote "a"] url = "/srv/a"\n[Remote "b"]\n\tURL=https://host/b/\n', ("/srv/a", "https://host/b")),
        ('[remote "a"]\nurl = https://me:secret@host/a.git?token=x\n', ("https://host/a.git",)),
        ('[branch "main"]\n\turl = no\n', ()),
    ],
)
def test_every_remote_counts_and_no_secret_of_its_address(
    tmp_path: Path, configuration: str, found: tuple[str, ...]
) -> None:
    place = repository(tmp_path / "a", configuration) / "recipes"
    place.mkdir()
    assert remotes(place / "x.yaml") == found


def test_a_worktree_has_the_remotes_of_its_repository_and_an_inner_repository_its_own(tmp_path: Path) -> None:
    main = repository(tmp_path / "main", '[remote "origin"]\n\turl = /srv/a\n')
    (main / ".git" / "worktrees" / "w").mkdir(parents=True)
    (main / ".git" / "worktrees" / "w" / "commondir").write_text("../..\n")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / ".git").write_text(f"gitdir: {main}/.git/worktrees/w\n")
    assert remotes(tmp_path / "w") == ("/srv/a",)
    assert remotes(repository(main / "inner", "[core]\n")) == ()
    assert remotes(tmp_path) == ()


def test_a_configuration_that_cannot_be_read_is_an_address_that_nobody_trusts(tmp_path: Path) -> None:
    (tmp_path / "a" / ".git").mkdir(parents=True)
    assert remotes(tmp_path / "a") == (f"a repository whose {tmp_path}/a/.git cannot be read",)
