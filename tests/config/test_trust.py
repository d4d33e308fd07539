"""Own and foreign files: by exact bytes, by the place that they were written to, and by the code that they name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.base.errors import ConfigErrors
from launcher.config.trust import sources as trust
from launcher.config.trust import store as trust_store
from launcher.config.trust.privileged_settings import PrivilegedSetting, needs
from launcher.config.trust.sources import Source

RUNS_CODE = PrivilegedSetting("cluster.setup", ["curl x | sh"], "runs these shell lines on every node")
SENDS = PrivilegedSetting("tracking", "wandb", "sends settings and metrics to a tracker")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "launch"


def recipe(folder: Path, name: str = "a", text: str = "x") -> Path:
    path = folder / "recipes" / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def why(path: Path, folder: Path, *privileged: PrivilegedSetting) -> str | None:
    return trust.origin_of(path, privileged, folder=folder)


def clone(folder: Path, url: str = "https://example.org/a") -> None:
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text(f'[remote "origin"]\n\turl = {url}\n')


def test_a_file_of_the_users_own_folders_is_their_own_and_any_other_is_not(tmp_path: Path) -> None:
    assert why(recipe(tmp_path), tmp_path) is None
    assert why(recipe(tmp_path / "elsewhere"), tmp_path) == trust.ELSEWHERE
    (tmp_path / "recipes" / "link.yaml").symlink_to(tmp_path / "elsewhere" / "recipes" / "a.yaml")
    assert why(tmp_path / "recipes" / "link.yaml", tmp_path) == trust.ELSEWHERE


def test_trust_is_of_exact_bytes(tmp_path: Path) -> None:
    path = recipe(tmp_path / "elsewhere")
    asking = [Source(path=path, privileged=[RUNS_CODE])]
    with pytest.raises(ConfigErrors):
        trust.require(asking, folder=tmp_path, given=False)
    trust.require(asking, folder=tmp_path, given=True)
    trust.require(asking, folder=tmp_path, given=False)
    assert why(recipe(tmp_path / "moved", "b"), tmp_path) is None
    path.write_text("x\n")
    with pytest.raises(ConfigErrors):
        trust.require(asking, folder=tmp_path, given=False)


def test_a_file_that_acts_in_no_way_is_not_asked_about(tmp_path: Path) -> None:
    trust.require([Source(path=recipe(tmp_path / "elsewhere"), privileged=[])], folder=tmp_path, given=False)


def test_a_foreign_file_stays_foreign_where_it_is_edited_moved_or_copied(tmp_path: Path) -> None:
    path = recipe(tmp_path)
    trust.note_foreign(path, b"x", "https://example.org/a", [RUNS_CODE, SENDS])
    assert why(path, tmp_path) == "it is from https://example.org/a"
    path.write_text("x\n")
    assert why(path, tmp_path) == "it was from https://example.org/a before it was edited"
    assert why(recipe(tmp_path, "copy"), tmp_path) == "it is from https://example.org/a"
    edited = recipe(tmp_path, "edited", "another")
    assert why(edited, tmp_path, RUNS_CODE) == "it names the same code as a file from https://example.org/a"
    assert why(edited, tmp_path, SENDS) is None


def test_a_clone_is_foreign_until_all_of_its_remotes_are_trusted(tmp_path: Path) -> None:
    clone(tmp_path)
    path = recipe(tmp_path)
    assert why(path, tmp_path) == "it is in a repository from https://example.org/a, which is not trusted"
    trust_store.add_origins(trust.untrusted_remotes(path))
    assert why(path, tmp_path) is None
    (tmp_path / ".git" / "config").write_text('[remote "a"]\nurl = https://example.org/a\n[remote "b"]\nurl = /b\n')
    assert why(path, tmp_path) == "it is in a repository from /b, which is not trusted"


def test_what_launch_wrote_from_the_users_own_words_is_own_in_a_clone_too(tmp_path: Path) -> None:
    clone(tmp_path)
    path = recipe(tmp_path)
    trust.note_own(path, b"x")
    assert why(path, tmp_path) is None
    path.write_text("edited")
    assert why(path, tmp_path) is not None


def test_a_file_of_another_user_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, mine = recipe(tmp_path), os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert why(path, tmp_path) == "it belongs to another user"


def test_a_lock_is_known_with_the_losses_that_are_added_to_it(tmp_path: Path) -> None:
    trust.note_lock("schema: 1\nspec: {}\nlosses: []\n")
    place = tmp_path / "elsewhere"
    assert why(recipe(place, "lock", "schema: 1\nspec: {}\nlosses:\n- {step: 1}\n"), tmp_path) is None
    assert why(recipe(place, "other", "schema: 1\nspec: {a: 1}\nlosses: []\n"), tmp_path) == trust.ELSEWHERE


def test_a_record_that_was_cut_short_takes_no_other_with_it(tmp_path: Path, state: Path) -> None:
    path = recipe(tmp_path)
    trust.note_foreign(path, b"x", "https://example.org/a", [])
    with (state / trust_store.NAME).open("a") as file:
        file.write('{"is": "trusted", "sha2')
    trust_store.add_origins(["https://example.org/b"])
    assert trust_store.known().origins == {"https://example.org/b"}
    assert why(path, tmp_path) == "it is from https://example.org/a"


def test_a_record_that_cannot_be_read_trusts_nothing(tmp_path: Path, state: Path) -> None:
    (state / trust_store.NAME).mkdir(parents=True)
    with pytest.raises(ConfigErrors) as caught:
        why(recipe(tmp_path), tmp_path)
    assert caught.value.errors[0].rule == "the record of trust cannot be read: Is a directory"
    with pytest.raises(ConfigErrors) as caught:
        trust.note_own(tmp_path / "a", b"x")
    assert caught.value.errors[0].rule == "the record of trust cannot be written: Is a directory"


def test_a_mix_of_files_of_this_machine_fetches_nothing() -> None:
    local = [{"path": "a/*.jsonl"}, {"path": "words.txt"}]
    assert not [*needs({"data.mix": local})]
    assert [each.key for each in needs({"data.mix": [*local, {"path": "org/set"}]})] == ["data.mix"]
