"""One headless Chromium for the tests of a process, of Debian's packages; where it cannot be had they are left out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from benchmarks.report import browser as chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(chromium.started())
        except chromium.NoBrowser as error:
            pytest.skip(f"pages are not opened in a browser: {error}")


@pytest.fixture(scope="module")
def visited(browser: Browser, file: Path) -> Iterator[Page]:
    """The page of the module's ``file``, which asks for nothing, says nothing and runs nobody's name."""
    with chromium.visit(browser, file) as found:
        yield found.page
        assert (found.asked, found.said) == ([], [])
        assert found.page.evaluate("window.hurt") is None, "a name has run"
