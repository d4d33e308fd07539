"""The browser of these tests notices what a page must not do, so that its silence means something."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from benchmarks.report import browser as chromium

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


def test_without_chromium_and_without_root_the_reason_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(chromium.NoBrowser, match="only root installs it: sudo apt-get install chromium"):
        chromium.program()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(chromium.NoBrowser, match="chromium is missing, and there is no apt-get"):
        chromium.program()
