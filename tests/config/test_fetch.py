"""Fetching a recipe: https with its hash, public addresses alone, bounded; git at a revision."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from launcher.base.errors import ConfigErrors, LauncherError, SubmitError
from launcher.cli import main
from launcher.config.trust import fetch

RECIPE = b"schema: 1\nsummary: from elsewhere\nchoose: {model: tiny, cluster: slurm}\nset: {cluster.setup: [ls]}\n"
HASH = hashlib.sha256(RECIPE).hexdigest()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(source: str) -> str:
    with pytest.raises(LauncherError) as caught:
        fetch.fetch(source)
    if isinstance(caught.value, ConfigErrors):
        return caught.value.errors[0].rule
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("http://example.org/a.yaml", "a recipe is fetched from https"),
        ("file:///etc/passwd", "a recipe is fetched from https"),
        ("https://127.0.0.1/a.yaml", "which is not a public address"),
        ("https://localhost/a.yaml", "which is not a public address"),
        ("https://example.org:x/a.yaml", "only https URLs with a host are followed"),
        ("https://[example/a.yaml", "only https URLs with a host are followed"),
        ("git+https://[example/a@main#b.yaml", "only https URLs with a host are followed"),
        ("https://10.1.2.3/a.yaml", "which is not a public address"),
        ("https://169.254.169.254/latest/meta-data", "which is not a public address"),
        ("https://[::1]/a.yaml", "which is not a public address"),
        ("git+https://127.0.0.1/a@main#b.yaml", "which is not a public address"),
        ("git+ext::sh -c x@main#b.yaml", "git repositories are reached only by https, ssh or file"),
        ("git+https://example.org/a@main", "a recipe in a repository has the form"),
        ("git+https://example.org/a@main#../b.yaml", "a recipe in a repository has the form"),
        ("git+https://example.org/a@--upload-pack=x#b.yaml", "a recipe in a repository has the form"),
    ],
)
def test_a_source_that_is_not_safe_is_refused(source: str, rule: str) -> None:
    assert rule in refusal(source)


def dripping(server: socket.socket, text: bytes) -> None:
    """Answer one connection with a byte now and then, until the other side has had enough."""
    connection, _ = server.accept()
    with connection, contextlib.suppress(OSError):
        for byte in itertools.cycle(text):
            connection.sendall(bytes([byte]))
            time.sleep(0.05)


@pytest.mark.parametrize(
    "text", [b"HTTP/1.1 200 OK\r\n" + b"A" * 60_000, b"no protocol at all\r\n", b"HTTP/1.1 nonsense\r\n"]
)
def test_a_server_that_never_ends_its_answer_is_left_in_time_and_closed(
    monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    opened: list[socket.socket] = []

    def plain_text(plain: socket.socket, host: str) -> contextlib.nullcontext[socket.socket]:
        opened.append(plain)
        return contextlib.nullcontext(plain)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=dripping, args=(server, text), daemon=True).start()
        monkeypatch.setattr(fetch, "TIMEOUT_S", 1.0)
        monkeypatch.setattr(fetch, "public_address", lambda host, port: "127.0.0.1")
        monkeypatch.setattr(fetch, "_secured", plain_text)
        assert "cannot be fetched: " in refusal(f"https://example.org:{server.getsockname()[1]}/a.yaml#sha256=00")
        assert [each.fileno() for each in opened] == [-1]


def answering(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, str | None, bytes]) -> list[str]:
    asked: list[str] = []
    left = list(answers)

    def answer(host: str, port: int, target: str, deadline: float) -> tuple[int, str | None, bytes]:
        asked.append(f"{host}{target}")
        return left.pop(0)

    monkeypatch.setattr(fetch, "_request", answer)
    return asked


def test_a_mocked_server_s_file_needs_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, *[(200, None, RECIPE)] * 3)
    assert "a hash must show" in refusal("https://example.org/a.yaml")
    assert f"this one has sha256={HASH}" in refusal("https://example.org/a.yaml#sha256=00")
    assert fetch.fetch(f"https://example.org/a.yaml#sha256={HASH}") == RECIPE


def test_a_mocked_server_s_redirects_lead_to_https_alone_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, (302, "/b.yaml?x=1", b""), (200, None, RECIPE))
    assert fetch.fetch(f"https://example.org/a.yaml#sha256={HASH}") == RECIPE
    assert asked == ["example.org/a.yaml", "example.org/b.yaml?x=1"]
    answering(monkeypatch, (302, "http://example.org/b.yaml", b""))
    assert refusal("https://example.org/a.yaml") == "only https URLs with a host are followed, also in redirects"
    answering(monkeypatch, (302, "https://[", b""))
    assert "only https URLs with a host are followed" in refusal("https://example.org/a.yaml")
    answering(monkeypatch, *[(302, "/a.yaml", b"")] * 9)
    assert "more than 3 redirects" in refusal("https://example.org/a.yaml")
    answering(monkeypatch, (404, None, b""))
    assert "the server answers 404" in refusal("https://example.org/a.yaml")


def test_a_recipe_of_a_repository_is_fetched_at_a_revision_and_is_not_the_users_own(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = folder / "repository"
    (repository / "x").mkdir(parents=True)
    (repository / "x" / "shared.yaml").write_bytes(RECIPE)
    (repository / "noise").write_bytes(random.Random(0).randbytes(1 << 16))
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*identity, "commit", "-qm", "x"), ("tag", "v1")):
        subprocess.run(["git", *words], cwd=repository, check=True, capture_output=True)
    source = f"git+file://{repository}@v1#x/shared.yaml"
    monkeypatch.setenv("GIT_DIR", str(folder / "of a hook"))
    assert main(["recipe", "fetch", source]) == 0
    assert capsys.readouterr().out.endswith("launch recipe=shared\n")
    assert (folder / "recipes" / "shared.yaml").read_bytes() == RECIPE
    assert main(["check", "recipe=shared"]) in (0, 3)
    assert main(["run", "recipe=shared"]) == 2
    assert "runs these shell lines on every node" in " ".join(capsys.readouterr().err.split())
    assert main(["recipe", "fetch", source]) == 4
    assert not (folder / "of a hook").exists()
    with pytest.raises(SubmitError):
        fetch.fetch(f"git+file://{repository}@v2#x/shared.yaml")
    monkeypatch.setattr(fetch, "PACK_BYTES", 1 << 15)
    assert refusal(source).endswith("; the limit of a revision is 32 KiB")
    monkeypatch.setattr(fetch, "GIT_TIMEOUT_S", 0.0)
    assert refusal(source) == "git init: it takes longer than 0 s"


def test_a_recipe_of_a_repository_is_kept_under_the_name_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fetch, "fetch", lambda source: RECIPE)
    assert main(["recipe", "fetch", "git+https://example.org/a@main#mine.yaml"]) == 0
    assert capsys.readouterr().out.endswith("launch recipe=mine\n")


def test_a_recipe_of_the_network_is_fetched_before_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "recipe=https://example.org/a.yaml"]) == 2
    assert "launch recipe fetch https://example.org/a.yaml" in capsys.readouterr().out


@pytest.mark.parametrize("source", ["https://example.org/a.yaml", "git+https://example.org/a@main#b.yaml"])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (socket.gaierror(-3, "Temporary failure in name resolution"), "name resolution"),
        (UnicodeError("label too long"), "example.org:443 is not an address: label too long"),
    ],
)
def test_without_a_name_server_a_fetch_ends_in_words_by_https_and_by_git_alike(
    source: str, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def look_up(*words: object, **options: object) -> list[object]:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert main(["recipe", "fetch", source]) == 4
    err = " ".join(capsys.readouterr().err.split())
    assert err.startswith("launch: https://example.org/a")
    assert "cannot be fetched: " in err
    assert said in err


def test_git_is_asked_with_nobody_there_to_answer_it_and_its_words_are_the_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = folder / "bin" / "git"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nread line && exit 1\necho "fatal: $GIT_TERMINAL_PROMPT $GIT_ASKPASS" >&2\nexit 128\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert main(["recipe", "fetch", f"git+file://{folder}@main#a.yaml"]) == 4
    assert capsys.readouterr().err == "launch: git init: fatal: 0 true\n"
    program.unlink()
    assert main(["recipe", "fetch", f"git+file://{folder}@main#a.yaml"]) == 4
    assert (
        capsys.readouterr().err == "launch: git is not installed, and is needed to fetch a recipe from a repository\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nowhere@main#a.yaml", "does not appear to be a git repository"),
        ("repository@nosuch#a.yaml", "couldn't find remote ref nosuch"),
        ("repository@main#nosuch.yaml", "path 'nosuch.yaml' does not exist"),
        ("repository@main#folder", "bad file"),
    ],
)
def test_what_a_repository_lacks_is_said_in_words(
    folder: Path, words: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    (folder / "repository" / "folder").mkdir(parents=True)
    (folder / "repository" / "folder" / "a.yaml").write_bytes(RECIPE)
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for each in (("init", "-q", "-b", "main"), ("add", "."), (*identity, "commit", "-qm", "x")):
        subprocess.run(["git", *each], cwd=folder / "repository", check=True, capture_output=True)
    assert main(["recipe", "fetch", f"git+file://{folder}/{words}"]) == 4
    err = capsys.readouterr().err
    assert err.startswith("launch: git ")
    assert said in err
