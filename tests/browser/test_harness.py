"""The browser of these tests notices what a page must not do, so that its silence means something."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from benchmarks.report import browser as chromium
from slurm.dev_cluster import packages
from tests.support.helpers import ROOT

_LOUD = """<!doctype html><meta charset="utf-8"><title>loud</title>
<img src="https://example.com/picture.png"><link rel="stylesheet" href="beside.css">
<script>console.warn("careful"); fetch("http://127.0.0.1:9/data").catch(() => undefined); undefined_name()</script>"""


def test_requests_warnings_and_exceptions_of_a_page_are_kept_and_no_request_is_answered(
    browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "beside.css").write_text("body { color: red }")
    (tmp_path / "page.html").write_text(_LOUD)
    with chromium.visit(browser, tmp_path / "page.html") as found:
        assert found.page.title() == "loud"
        beside = (tmp_path / "beside.css").as_uri()
        assert set(found.asked) == {"https://example.com/picture.png", "http://127.0.0.1:9/data", beside}
        assert "warning: careful" in found.said
        assert any(line.startswith("thrown: ") and "undefined_name" in line for line in found.said)


def test_a_quiet_page_is_quiet(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text('<!doctype html><meta charset="utf-8"><title>quiet</title><p>hello</p>')
    with chromium.visit(browser, tmp_path / "page.html", scheme="dark") as found:
        assert found.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
        assert (found.asked, found.said) == ([], [])


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that is all of ``PATH``, without a Chromium in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(packages, "path", lambda: str(folder))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return folder


def put(folder: Path, name: str, text: str = "") -> Path:
    """A program of this name, of these lines of shell."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return folder / name


def test_a_browser_that_was_just_installed_is_given_by_the_path_of_its_executable(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_POLICY", tmp_path / "policy")
    chmod = shutil.which("chmod", path=os.defpath)
    put(bare, "apt-get", f'test "$2" = update || {{ : > {bare}/chromium; {chmod} +x {bare}/chromium; }}')
    assert chromium.install() == f"{bare}/chromium" == chromium.program()
    assert not (tmp_path / "policy").exists()


def test_a_machine_that_may_not_install_has_the_reason_and_nothing_is_tried(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    put(bare, "apt-get", "echo this was called >&2; exit 1")
    chromium.main()
    assert capsys.readouterr().out == (
        "pages are not opened in a browser, and tests/browser is skipped: "
        "there is no Chromium; as root, `make chromium` installs it\n"
    )


def test_what_apt_get_says_is_the_reason_where_it_fails(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_POLICY", tmp_path / "policy")
    put(bare, "apt-get", "echo E: no network >&2; exit 100")
    with pytest.raises(chromium.NoBrowser, match=r"^apt-get update failed: E: no network$"):
        chromium.install()
    put(bare, "apt-get", "exec /bin/sleep 60")
    monkeypatch.setattr(packages, "_TIMEOUT_S", 0.1)
    with pytest.raises(chromium.NoBrowser, match=r"^apt-get update has not ended after 0\.1 s$"):
        chromium.install()
    monkeypatch.setattr(packages, "_POLICY", tmp_path / "no" / "folder")
    with pytest.raises(chromium.NoBrowser, match=r"^packages cannot be installed here: .*No such file"):
        chromium.install()


def test_without_apt_get_chromium_comes_by_hand(bare: Path) -> None:
    with pytest.raises(
        chromium.NoBrowser, match=r"^there is no Chromium; .* by apt-get, which is not here: .* by hand$"
    ):
        chromium.program()
    with pytest.raises(
        chromium.NoBrowser, match=r"^chromium, fonts-dejavu-core, libatomic1 are missing, and there is no"
    ):
        chromium.install()


def test_a_library_that_the_driver_lacks_is_installed_beside_a_chromium_that_is_there(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_POLICY", tmp_path / "policy")
    monkeypatch.setattr(chromium, "compute_driver_executable", lambda: (str(bare / "node"), "cli.js"))
    put(bare, "chromium")
    put(bare, "node", f"test -e {bare}/libatomic1 || {{ echo node: libatomic.so.1 is missing >&2; exit 127; }}")
    with pytest.raises(
        chromium.NoBrowser, match=r"^Playwright does not start: node: libatomic\.so\.1 is missing; `make chromium`"
    ):
        chromium.program()
    put(bare, "apt-get", f'for name in "$@"; do test "$name" != libatomic1 || : > {bare}/libatomic1; done')
    assert chromium.install() == f"{bare}/chromium"


def test_the_thorough_tests_need_the_browser_and_what_every_change_runs_does_not() -> None:
    """What make would run in a checkout where nothing is built, which it only prints."""
    lines = {
        goal: subprocess.run(
            ["make", "--dry-run", "VENV=none", goal], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for goal in ("test-thorough", "test", "demo")
    }
    wanted = "-m benchmarks.report.browser"
    assert 0 < lines["test-thorough"].find(wanted) < lines["test-thorough"].find("-m pytest")
    assert wanted not in lines["test"] + lines["demo"]
    assert "launch model=tiny" in lines["demo"]
